
use super::*;
fn cpu(pid: u32) -> f64 {
    let s = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let f: Vec<&str> = s.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) * 10_000.0
}
/// rounds;work:knobs;work:knobs   e.g. "8;r;o2,0;o2,1"
pub(super) fn run(spec: &str, measure: Duration) -> Result<()> {
    let mut parts = spec.split(';');
    let rounds: usize = parts.next().unwrap().parse()?;
    let variants: Vec<&str> = parts.collect();
    let more = std::env::var("ZJAVA").unwrap_or_default();
    let mut flags = vec!["-Dzookeeper.forceSync=yes"]; flags.extend(more.split_whitespace());
    let server = Zookeeper::start_with("", &flags)?;
    let pid = server.process().pid();
    
    let mut all: Vec<Vec<[f64; 4]>> = vec![Vec::new(); variants.len()];
    let warm: usize = std::env::var("ZWARM").map_or(1, |w| w.parse().unwrap());
    for round in 0..rounds + warm {
        for at in 0..variants.len() {
            let at = if round % 2 == 0 { at } else { variants.len() - 1 - at };
            let v = variants[at];
            for (knob, value) in v[1..].split(',').filter(|s| !s.is_empty()).enumerate() {
                leasehold::backend::zookeeper::KNOBS[knob].store(value.parse()?, Ordering::Relaxed);
            }
            let work = match &v[..1] { "r" => Work::Raw(TASKS), "1" => Work::Raw(1), "p" => Work::Ours(1), "d" => Work::DriversLock, "c" => Work::Contended, _ => Work::Ours(TASKS) };
            *PID.lock().unwrap() = pid;
            let done = measured(&server, work, measure)?.unwrap();
            let n = done.count as f64; let (a, b, sw) = *START.lock().unwrap(); let (_, _, sw2) = END.lock().unwrap().clone(); let (ja, jb) = { let e = END.lock().unwrap(); (e.0, e.1) };
            let names = ["acquire", "release", "multi-create", "delete"];
            if round + 1 == rounds + warm && v.starts_with('o') { for (i, n) in names.iter().enumerate() {
                let c = |k: usize| leasehold::backend::zookeeper::COUNTS[i * 3 + k].load(Ordering::Relaxed) as f64;
                print!("{n}: {} x {:.1} in {:.0} us; ", c(0), c(1) / c(0), c(2) / c(0));
            } println!("{v} wall {:.3} pairs {}", done.took.as_secs_f64(), done.count); }
            if round >= warm {
                all[at].push([done.per_second(), (ja - a) / n, (jb - b) / n, (sw2 - sw) / n]);
            }
        }
    }
    println!("{:>14} {:>8} {:>8} {:>8} {:>8} {:>8}", "variant", "per s", "ratio", "best", "java us", "cli us"); println!("{:>70}", "switches");
    for (at, v) in variants.iter().enumerate() {
        let m = |i: usize| median(all[at].iter().map(|x| x[i]));
        let ratio = median(all[at].iter().zip(&all[0]).map(|(a, b)| a[0] / b[0]));
        let best = all[at].iter().map(|x| x[0]).fold(0.0, f64::max);
        println!("{v:>14} {:8.0} {ratio:8.2} {best:8.0} {:8.1} {:8.1} {:8.2}", m(0), m(1), m(2), m(3));
    }
    std::process::exit(0)
}

use std::sync::Mutex;
static PID: Mutex<u32> = Mutex::new(0);
static START: Mutex<(f64, f64, f64)> = Mutex::new((0.0, 0.0, 0.0));
static END: Mutex<(f64, f64, f64)> = Mutex::new((0.0, 0.0, 0.0));
fn now() -> (f64, f64, f64) {
    let pid = *PID.lock().unwrap();
    if pid == 0 { return (0.0, 0.0, 0.0); }
    let mut sw = 0.0;
    for t in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let s = std::fs::read_to_string(t.unwrap().path().join("status")).unwrap_or_default();
        for l in s.lines().filter(|l| l.starts_with("voluntary_ctxt")) { sw += l.split_whitespace().last().unwrap().parse::<f64>().unwrap(); }
    }
    (cpu(pid), cpu(std::process::id()), sw)
}
pub(super) fn start() { for c in &leasehold::backend::zookeeper::COUNTS { c.store(0, Ordering::Relaxed); } let n = now(); *START.lock().unwrap() = n; }
pub(super) fn end() { let n = now(); *END.lock().unwrap() = n; }
