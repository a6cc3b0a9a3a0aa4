//! Measures the cost of a verdict with a hundred thousand rules: `cargo run --release -p
//! ringfence-egress --example bench_rules`.
//!
//! Prints one line of JSON, nanoseconds for each kind of target.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ringfence_egress::{HostRule, Rules, Target};

const RULES: usize = 100_000;
const LASTS: Duration = Duration::from_millis(200);

fn main() {
    let rule = |number: usize| -> HostRule {
        let (high, middle, low) = (number >> 16, number >> 8 & 0xff, number & 0xff);
        let text = match number % 4 {
            0 => format!("host-{number}.example.org"),
            1 => format!("*.domain-{number}.example.net:443"),
            2 => format!("{}.{middle}.{low}.0/{}", 20 + high, 24 + number % 3 * 4),
            _ => format!("[2a00:{high:x}:{middle:x}:{low:x}::/{}]:443", 64 + number % 32),
        };
        text.parse().expect("the rule is well-formed")
    };
    let allow: Vec<HostRule> = (0..RULES).map(rule).collect();
    let deny: Vec<HostRule> = (0..RULES / 100).map(|number| rule(number * 97)).collect();
    let started = Instant::now();
    let rules = Rules::new(&allow, &deny);
    let built = started.elapsed();

    let targets = [
        ("name", "host-50000.example.org:443"),
        ("wildcard", "a.b.c.domain-50001.example.net:443"),
        ("unlisted_name", "a.b.c.d.e.f.example.com:443"),
        ("ipv4", "20.195.82.7:443"),
        ("ipv6", "[2a00:0:c3:53::7]:443"),
        ("unlisted_address", "93.184.216.34:443"),
        ("internal_address", "169.254.169.254:80"),
    ];
    let nanoseconds = targets.map(|(kind, text)| {
        let target = Target::from_authority(text, None).expect("the target is well-formed");
        format!("\"{kind}\": {:.0}", cost(|| drop(black_box(rules.judge(black_box(&target))))))
    });
    let parsed =
        cost(|| drop(black_box(Target::from_authority(black_box("www.Example.org:443"), None))));
    #[expect(clippy::print_stdout, reason = "the figures are what this program is for")]
    {
        println!(
            "{{\"rules\": {RULES}, \"build_milliseconds\": {}, \"parse\": {parsed:.0}, {}}}",
            built.as_millis(),
            nanoseconds.join(", ")
        );
    }
}

/// Nanoseconds that `work` takes, once it is warm.
fn cost(work: impl Fn()) -> f64 {
    let rounds = |count: u32| {
        let started = Instant::now();
        (0..count).for_each(|_| work());
        started.elapsed()
    };
    let mut count = 1000;
    loop {
        let taken = rounds(count);
        if taken >= LASTS {
            return taken.as_nanos() as f64 / f64::from(count);
        }
        count *= 2;
    }
}
