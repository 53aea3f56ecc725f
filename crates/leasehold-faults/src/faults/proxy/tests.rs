//! The proxy in front of a server that echoes and counts.

use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const BOUND: Duration = Duration::from_secs(10);
/// Long enough for an echo on one machine; what must not come is waited for this long.
const SILENCE: Duration = Duration::from_millis(100);

struct Echo {
    proxy: Proxy,
    heard: Arc<AtomicUsize>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(AtomicUsize::new(0));
        let counter = heard.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let counter = counter.clone();
                tokio::spawn(async move {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() {
                        counter.fetch_add(1, Ordering::SeqCst);
                        if stream.write_all(&byte).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { proxy: Proxy::to(address).await.unwrap(), heard }
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.proxy.addr()).await.unwrap()
    }

    async fn heard(&self, count: usize) {
        let hearing = async {
            while self.heard.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(BOUND, hearing).await.expect("the server hears it");
    }
}

async fn ask(client: &mut TcpStream, byte: u8) {
    client.write_all(&[byte]).await.unwrap();
}

async fn answer(client: &mut TcpStream) -> u8 {
    tokio::time::timeout(BOUND, client.read_u8()).await.expect("an answer").expect("a byte")
}

async fn ended(client: &mut TcpStream) {
    let ended = tokio::time::timeout(BOUND, client.read_u8()).await.expect("it ends");
    assert!(ended.is_err(), "{ended:?}");
}

async fn silence(client: &mut TcpStream) {
    let heard = tokio::time::timeout(SILENCE, client.read_u8()).await;
    assert!(heard.is_err(), "{heard:?}");
}

#[tokio::test]
async fn in_good_weather_it_is_not_noticed() {
    let echo = Echo::start().await;
    let mut client = echo.client().await;
    ask(&mut client, 1).await;
    assert_eq!(answer(&mut client).await, 1);
}

#[tokio::test]
async fn a_delay_delays() {
    let echo = Echo::start().await;
    let mut client = echo.client().await;
    echo.proxy.delay(Way::Replies, Duration::from_millis(50));
    let began = Instant::now();
    ask(&mut client, 1).await;
    assert_eq!(answer(&mut client).await, 1);
    assert!(began.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn dropped_one_way_the_server_hears_but_is_not_heard() {
    let echo = Echo::start().await;
    let mut client = echo.client().await;
    echo.proxy.drop_one_way(Way::Replies);
    ask(&mut client, 1).await;
    echo.heard(1).await;
    silence(&mut client).await;
    echo.proxy.heal();
    // A connection never loses bytes from its middle.
    ended(&mut client).await;
    let mut client = echo.client().await;
    ask(&mut client, 2).await;
    assert_eq!(answer(&mut client).await, 2);
}

#[tokio::test]
async fn what_was_cut_off_arrives_late() {
    let echo = Echo::start().await;
    let mut client = echo.client().await;
    ask(&mut client, 1).await;
    assert_eq!(answer(&mut client).await, 1);
    echo.proxy.cut(Way::Requests);
    ask(&mut client, 2).await;
    silence(&mut client).await;
    assert_eq!(echo.heard.load(Ordering::SeqCst), 1);
    echo.proxy.heal();
    assert_eq!(answer(&mut client).await, 2);
    echo.proxy.cut(Way::Replies);
    ask(&mut client, 3).await;
    echo.heard(3).await;
    silence(&mut client).await;
    echo.proxy.heal();
    assert_eq!(answer(&mut client).await, 3);
}

#[tokio::test]
async fn a_client_that_comes_during_a_cut_is_served_afterwards() {
    let echo = Echo::start().await;
    echo.proxy.cut(Way::Requests);
    echo.proxy.cut(Way::Replies);
    let mut client = echo.client().await;
    ask(&mut client, 1).await;
    silence(&mut client).await;
    echo.proxy.heal();
    assert_eq!(answer(&mut client).await, 1);
}

#[tokio::test]
async fn the_second_reply_is_swallowed() {
    let echo = Echo::start().await;
    let mut client = echo.client().await;
    echo.proxy.swallow_reply(2);
    ask(&mut client, 1).await;
    assert_eq!(answer(&mut client).await, 1);
    ask(&mut client, 2).await;
    echo.heard(2).await;
    ended(&mut client).await;
    let mut client = echo.client().await;
    ask(&mut client, 3).await;
    assert_eq!(answer(&mut client).await, 3);
}

#[tokio::test]
async fn the_reply_to_a_certain_request_is_swallowed() {
    let echo = Echo::start().await;
    let (mut one, mut two) = (echo.client().await, echo.client().await);
    echo.proxy.swallow_reply_to([7]);
    ask(&mut one, 1).await;
    assert_eq!(answer(&mut one).await, 1);
    ask(&mut one, 7).await;
    echo.heard(2).await;
    ended(&mut one).await;
    ask(&mut two, 7).await;
    assert_eq!(answer(&mut two).await, 7);
}

#[tokio::test]
async fn a_certain_request_is_held_and_others_pass() {
    let echo = Echo::start().await;
    let (mut one, mut two) = (echo.client().await, echo.client().await);
    echo.proxy.hold_request_with([7]);
    ask(&mut one, 7).await;
    tokio::time::timeout(BOUND, echo.proxy.holds_one()).await.expect("it is held");
    ask(&mut two, 2).await;
    assert_eq!(answer(&mut two).await, 2);
    silence(&mut one).await;
    echo.proxy.deliver();
    assert_eq!(answer(&mut one).await, 7);
    assert_eq!((echo.proxy.connections(), echo.proxy.requests()), (2, 2));
}

#[tokio::test]
async fn a_refused_connection_ends_and_others_go_on() {
    let echo = Echo::start().await;
    let mut before = echo.client().await;
    ask(&mut before, 1).await;
    assert_eq!(answer(&mut before).await, 1);
    echo.proxy.refuse();
    ended(&mut echo.client().await).await;
    ask(&mut before, 2).await;
    assert_eq!(answer(&mut before).await, 2);
}

#[tokio::test]
async fn a_held_request_arrives_late_even_when_its_client_has_gone() {
    let echo = Echo::start().await;
    let mut client = echo.client().await;
    echo.proxy.hold_request();
    ask(&mut client, 1).await;
    tokio::time::timeout(BOUND, echo.proxy.holds_one()).await.expect("it is held");
    drop(client);
    assert_eq!(echo.heard.load(Ordering::SeqCst), 0);
    echo.proxy.deliver();
    echo.heard(1).await;
}

#[tokio::test]
async fn a_reset_ends_connections_and_lets_new_ones_in() {
    let echo = Echo::start().await;
    let mut client = echo.client().await;
    ask(&mut client, 1).await;
    assert_eq!(answer(&mut client).await, 1);
    echo.proxy.reset();
    ended(&mut client).await;
    let mut client = echo.client().await;
    ask(&mut client, 2).await;
    assert_eq!(answer(&mut client).await, 2);
}

#[tokio::test]
async fn a_server_that_gives_up_ends_its_side_and_the_client_learns_when_it_heals() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    proxy.cut(Way::Requests);
    proxy.cut(Way::Replies);
    proxy.give_up_after(Duration::from_millis(1));
    tokio::time::timeout(BOUND, ended(&mut server)).await.expect("the server's side ends");
    silence(&mut client).await;
    proxy.heal();
    tokio::time::timeout(BOUND, ended(&mut client)).await.expect("the client's side ends");
}

#[tokio::test]
async fn a_heal_calls_off_the_giving_up() {
    let echo = Echo::start().await;
    let mut client = echo.client().await;
    ask(&mut client, 1).await;
    assert_eq!(answer(&mut client).await, 1);
    echo.proxy.give_up_after(SILENCE / 2);
    echo.proxy.heal();
    silence(&mut client).await;
    ask(&mut client, 2).await;
    assert_eq!(answer(&mut client).await, 2);
}
