//! One lease, without a keeper: what it says at each moment, and what it makes of answers.

use std::sync::Arc;

use super::*;
use crate::backend::memory::MemoryStore;
use crate::backend::{Claim, Grant};
use crate::clock::{Clock, ManualClock};
use crate::event::Events;
use crate::holder::Holder;

const TTL: Duration = Duration::from_secs(30);
/// What is taken off a proof of that: 1 %, and two milliseconds.
const TERM: Duration = Duration::from_millis(30_000 - 300 - 2);
const MILLI: Duration = Duration::from_millis(1);

impl LeaseCore {
    /// A lease that was granted just now.
    pub(in crate::lease) fn for_as_long_as(context: &Context, ttl: Duration) -> Self {
        Self::under(context, &Terms { ttl, ..Terms::default() })
    }

    fn under(context: &Context, terms: &Terms) -> Self {
        let holder = Arc::new(Holder::this_process());
        let claim = Claim::new(Name::new("x").unwrap(), terms.ttl, holder);
        let now = context.clock.now();
        let proof = Proof { at: now, valid_for: terms.ttl };
        let grant = Grant { token: Token::new(1), proof };
        let class = context.meter.class_of(&claim.name);
        let granted = Granted { claim, class, grant, at: now, stray_claim: false };
        Self::new(context, granted, terms)
    }
}

struct Scene {
    hand: Arc<ManualClock>,
    context: Context,
    events: Events,
    core: LeaseCore,
}

impl Scene {
    fn new(terms: Terms) -> Self {
        let hand = Arc::new(ManualClock::new());
        let context = Context::of_a_part(MemoryStore::new(Clock::manual(hand.clone())));
        let events = context.announcer.subscribe();
        let core = LeaseCore::under(&context, &terms);
        Self { hand, context, events, core }
    }

    fn now(&self) -> Moment {
        self.context.clock.now()
    }

    fn question(&self) -> Question {
        self.core.question(&self.context, self.now())
    }

    fn state(&self) -> LeaseState {
        self.core.state(&self.context)
    }

    /// A whole TTL from now; the deadline.
    fn proved(&self, extends: bool) -> Moment {
        let proof = Proof { at: self.now(), valid_for: TTL };
        self.core.proved(&self.context, proof, extends, self.now())
    }

    fn doubted(&self, question: Question) -> Option<Duration> {
        let again = self.core.doubted(&self.context, question, Error::no_answer(MILLI));
        again.map(|again| self.now().until(again))
    }

    fn reason(&self) -> Option<LossReason> {
        match self.state() {
            LeaseState::Lost(loss) => Some(loss.reason),
            _ => None,
        }
    }

    /// What was told up to now.
    async fn told(mut self) -> Vec<&'static str> {
        drop((self.core, self.context));
        let mut told = Vec::new();
        while let Some(event) = self.events.next().await {
            told.push(match event.kind {
                EventKind::Renewed => "renewed",
                EventKind::Doubtful(_) => "doubtful",
                EventKind::Lost(_) => "lost",
                EventKind::Released { .. } => "released",
                other => panic!("{other:?}"),
            });
        }
        told
    }
}

fn terms() -> Terms {
    Terms { ttl: TTL, ..Terms::default() }
}

fn proves(attempts: u32) -> Terms {
    Terms { on_doubt: OnDoubt::Prove { attempts }, ..terms() }
}

#[tokio::test]
async fn a_renewal_is_due_after_a_third_of_the_term_or_a_little_earlier() {
    let scene = Scene::new(terms());
    let at = scene.now();
    let third = Duration::from_secs(10);
    for valid_for in [TTL, 2 * TTL] {
        let due = (0..200).map(|_| at.until(scene.core.renewal_after(Proof { at, valid_for })));
        let (first, last) =
            due.fold((TTL, Duration::ZERO), |(first, last), due| (first.min(due), last.max(due)));
        assert!(first >= third * 9 / 10 && last <= third, "{first:?} to {last:?}");
        assert!(first < third * 19 / 20 && last > third * 19 / 20, "all at once: {first:?}");
    }
}

#[tokio::test]
async fn a_short_proof_is_renewed_by_its_own_measure() {
    let scene = Scene::new(terms());
    let proof = Proof { at: scene.now(), valid_for: TTL / 10 };
    assert!(scene.now().until(scene.core.renewal_after(proof)) <= TTL / 30);
}

#[tokio::test]
async fn a_question_leaves_time_to_ask_again() {
    let scene = Scene::new(terms());
    let question = scene.question();
    assert_eq!(question.limit, TTL / 6);
    assert_eq!(question.deadline, scene.core.deadline());
    scene.hand.advance(TERM - Duration::from_secs(3));
    assert_eq!(scene.question().limit, Duration::from_secs(1), "a third of what is left");
    scene.hand.advance(Duration::from_secs(3));
    assert_eq!(scene.question().limit, MILLI);
    let mut scene = Scene::new(terms());
    scene.context.request_timeout = MILLI * 5;
    assert_eq!(scene.question().limit, MILLI * 5);
}

/// The schedule counts in milliseconds: early is safe.
#[tokio::test]
async fn the_keeper_renews_it_when_that_is_due_and_ends_it_when_it_is_over() {
    let scene = Scene::new(terms());
    let (now, deadline) = (scene.now(), scene.core.deadline());
    assert_eq!(now.until(deadline), TERM);
    let due = |at: Moment, renew_at: Moment| scene.core.due(&scene.context, at, renew_at);
    let renew_at = now + TTL / 3;
    assert!(matches!(due(now, renew_at), Next::At(at) if at == renew_at));
    assert!(matches!(due(now, Moment::NEVER), Next::At(at) if at == deadline));
    assert!(matches!(due(renew_at - MILLI * 2, renew_at), Next::At(_)));
    assert!(matches!(due(renew_at - MILLI, renew_at), Next::Renew(_)));
    assert!(matches!(due(deadline - MILLI * 2, Moment::NEVER), Next::At(_)));
    assert!(matches!(due(deadline - MILLI, Moment::NEVER), Next::Over(Some(_))));
    assert!(matches!(due(deadline - MILLI, Moment::NEVER), Next::Over(None)), "told once");
}

#[tokio::test]
async fn it_is_over_at_its_deadline_and_not_before() {
    let scene = Scene::new(terms());
    let deadline = scene.core.deadline();
    scene.hand.advance(TERM - MILLI);
    assert_eq!(scene.state(), LeaseState::Held);
    assert!(!scene.core.is_over(scene.now()) && scene.core.is_over(deadline));
    scene.hand.advance(MILLI);
    assert_eq!(scene.reason(), Some(LossReason::Expired));
    assert!(scene.core.is_over(deadline - TERM), "a loss is final");
    assert_eq!(scene.told().await, ["lost"]);
}

#[tokio::test]
async fn it_is_over_when_it_was_held_for_as_long_as_allowed() {
    let cap = TTL / 2;
    let scene = Scene::new(Terms { max_hold: Some(cap), ..terms() });
    let ends_at = scene.now() + cap;
    assert_eq!(scene.core.deadline(), ends_at);
    scene.hand.advance(cap - MILLI);
    assert_eq!(scene.proved(true), ends_at, "renewals included");
    assert_eq!(scene.question().deadline, ends_at);
    assert!(!scene.core.is_over(scene.now()) && scene.core.is_over(ends_at));
    scene.hand.advance(MILLI);
    assert_eq!(scene.reason(), Some(LossReason::MaxHold));
}

#[tokio::test]
async fn a_proof_extends_it_and_an_older_one_takes_nothing_back() {
    let scene = Scene::new(terms());
    let before = scene.now();
    scene.hand.advance(TTL / 2);
    let deadline = scene.proved(true);
    assert_eq!(scene.now().until(deadline), TERM);
    let older = Proof { at: before, valid_for: TTL };
    assert_eq!(scene.core.proved(&scene.context, older, true, scene.now()), deadline);
    assert_eq!(scene.told().await, ["renewed", "renewed"]);
}

/// Of one that is not renewed, an answer lifts doubt; its term stays what it was.
#[tokio::test]
async fn a_proof_that_does_not_extend_it_lifts_doubt_and_is_no_renewal() {
    let scene = Scene::new(Terms { renewed: false, ..terms() });
    let deadline = scene.core.deadline();
    scene.hand.advance(TTL / 2);
    scene.doubted(scene.question());
    assert_eq!(scene.state(), LeaseState::Doubtful);
    assert_eq!(scene.proved(false), deadline);
    assert_eq!(scene.state(), LeaseState::Held);
    assert_eq!(scene.told().await, ["doubtful"]);
}

#[tokio::test]
async fn an_answer_after_its_end_is_no_renewal() {
    for released in [false, true] {
        let scene = Scene::new(terms());
        match released {
            true => _ = scene.core.begin_release(&scene.context),
            false => scene.core.lose(&scene.context, LossReason::Taken),
        }
        let ended = scene.state();
        assert_ne!(ended, LeaseState::Held);
        scene.proved(true);
        scene.core.seen(&scene.context);
        assert_eq!(scene.doubted(scene.question()), None);
        scene.core.lose(&scene.context, LossReason::Unreachable);
        assert_eq!(scene.state(), ended);
        let told: &[&str] = if released { &[] } else { &["lost"] };
        assert_eq!(scene.told().await, told);
    }
}

#[tokio::test]
async fn doubt_is_borne_for_so_many_attempts_and_is_then_loss() {
    let scene = Scene::new(proves(3));
    for _ in 0..3 {
        assert!(scene.doubted(scene.question()).is_some());
        assert_eq!(scene.state(), LeaseState::Doubtful);
    }
    assert_eq!(scene.doubted(scene.question()), None);
    assert_eq!(scene.reason(), Some(LossReason::Unreachable));
    assert_eq!(scene.told().await, ["doubtful", "doubtful", "doubtful", "doubtful", "lost"]);
}

/// Whoever saw it says that it is there: then all attempts are before it again.
#[tokio::test]
async fn doubt_that_was_lifted_begins_anew() {
    for by_proof in [false, true] {
        let scene = Scene::new(proves(2));
        for _ in 0..3 {
            for _ in 0..2 {
                assert!(scene.doubted(scene.question()).is_some());
            }
            match by_proof {
                true => _ = scene.proved(true),
                false => scene.core.seen(&scene.context),
            }
            assert_eq!(scene.state(), LeaseState::Held);
        }
    }
}

#[tokio::test]
async fn questions_of_one_moment_that_fail_are_one_attempt() {
    let scene = Scene::new(proves(2));
    let (one, other) = (scene.question(), scene.question());
    assert!(scene.doubted(one).is_some());
    assert_eq!(scene.doubted(other), None, "the next one is arranged");
    assert_eq!(scene.state(), LeaseState::Doubtful);
    assert!(scene.doubted(scene.question()).is_some());
}

#[tokio::test]
async fn a_failure_from_before_a_proof_is_no_doubt() {
    let scene = Scene::new(terms());
    let question = scene.question();
    scene.proved(true);
    assert_eq!(scene.doubted(question), None);
    assert_eq!(scene.state(), LeaseState::Held);
}

/// The attempts are spread over what is left of the term; the pauses are jittered by half.
#[tokio::test]
async fn the_pause_before_the_next_attempt_is_neither_long_nor_none() {
    let pauses = |attempts: u32, left: Duration| {
        let all = (0..100).map(move |_| {
            let scene = Scene::new(proves(attempts));
            scene.hand.advance(TERM - left);
            scene.doubted(scene.question()).unwrap()
        });
        all.fold((TTL, Duration::ZERO), |(least, most), pause| (least.min(pause), most.max(pause)))
    };
    for (attempts, left, pause) in [
        // Not idle for long: a twelfth of the TTL.
        (1, TERM, TTL / 12),
        (2, Duration::from_secs(6), Duration::from_secs(2)),
        // No storm: a hundredth.
        (u32::MAX, TERM, TTL / 100),
    ] {
        let (least, most) = pauses(attempts, left);
        assert!(least >= pause / 2 && most <= pause, "{attempts}: {least:?} to {most:?}");
        assert!(least < pause * 3 / 4 && most > pause * 3 / 4, "no jitter: {least:?} to {most:?}");
    }
}

#[tokio::test]
async fn doubt_at_its_deadline_is_loss_as_unreachable() {
    let scene = Scene::new(terms());
    scene.doubted(scene.question());
    scene.hand.advance(TERM);
    assert_eq!(scene.doubted(scene.question()), None);
    assert_eq!(scene.reason(), Some(LossReason::Unreachable));
    assert_eq!(scene.told().await, ["doubtful", "lost"]);
}

#[tokio::test]
async fn it_is_given_back_once_and_only_before_its_end() {
    let scene = Scene::new(terms());
    let deadline = scene.core.deadline();
    assert_eq!(scene.core.begin_release(&scene.context), Ok(deadline));
    assert_eq!(scene.core.begin_release(&scene.context), Err(LeaseState::Released));
    let scene = Scene::new(terms());
    scene.hand.advance(TERM);
    let ended = scene.core.begin_release(&scene.context);
    assert!(matches!(ended, Err(LeaseState::Lost(loss)) if loss.reason == LossReason::Expired));
    assert_eq!(scene.told().await, ["lost"]);
}

/// What happens while somebody waits to see this state, and whether it was seen.
async fn sees(scene: &Scene, wanted: LeaseState, happens: impl FnOnce()) -> bool {
    let seen = scene.core.until(&scene.context, |state| (state == wanted).then_some(()));
    let both = async { tokio::join!(biased; seen, async { happens() }) };
    tokio::time::timeout(TTL, both).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn whoever_watches_is_told_of_doubt_of_its_end_and_of_the_end() {
    let scene = Scene::new(terms());
    let cancelled = scene.core.cancellation_token(&scene.context);
    for by_proof in [true, false] {
        let doubted = || assert!(scene.doubted(scene.question()).is_some());
        assert!(sees(&scene, LeaseState::Doubtful, doubted).await);
        let lifted = || match by_proof {
            true => _ = scene.proved(true),
            false => scene.core.seen(&scene.context),
        };
        assert!(sees(&scene, LeaseState::Held, lifted).await);
    }
    assert!(!cancelled.is_cancelled());
    let given_back = || assert!(scene.core.begin_release(&scene.context).is_ok());
    assert!(sees(&scene, LeaseState::Released, given_back).await);
    assert!(cancelled.is_cancelled());
}

#[tokio::test]
async fn whoever_begins_to_watch_after_the_end_is_cancelled_at_once() {
    let scene = Scene::new(terms());
    scene.core.lose(&scene.context, LossReason::Taken);
    assert!(scene.core.cancellation_token(&scene.context).is_cancelled());
}
