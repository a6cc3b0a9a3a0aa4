//! Bar chart of the comparisons: hand-written SVG with a logarithmic scale, legible on light and
//! dark pages.

use std::fmt::Write;
use std::time::Duration;

use super::report::TimeComparison;

const WIDTH: f64 = 760.0;
const LABELS: f64 = 190.0;
const VALUES: f64 = 90.0;
const ROW: f64 = 24.0;
const HEAD: f64 = 44.0;
const FOOT: f64 = 34.0;

const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .head { font-weight: 600 } .tick \
{ font-size: 11px; fill: #59636e }
.peer { fill: #8c959f } .ours { fill: #1a7f37 } .grid { stroke: #d1d9e0 } .spread \
{ stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .tick { fill: #9198a1 } .peer { fill: #656c76 } .ours { fill: #3fb950 }
.grid { stroke: #3d444d } .spread { stroke: #f0f6fc } }";

/// Draws one group of bars per command. A bar ends at the median, and the line to its right ends at
/// the 95th percentile.
pub(super) fn draw(comparisons: &[TimeComparison]) -> String {
    let groups: Vec<(&str, Vec<ChartBar>)> = comparisons
        .iter()
        .map(|comparison| (comparison.title.as_str(), bars(comparison)))
        .collect();
    let scale = TimeScale::for_bars(groups.iter().flat_map(|(_, bars)| bars));
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = groups.len() as f64 * (HEAD + FOOT) + rows as f64 * ROW;
    let mut body = String::new();
    let mut top = 0.0;
    for (command, bars) in &groups {
        top = draw_group(&mut body, &scale, top, command, bars);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"Time to run a command through ringfence and its peers\">\n\
         <style>{STYLE}</style>\n{body}</svg>\n"
    )
}

struct ChartBar {
    name: &'static str,
    median: Duration,
    spread: Duration,
}

fn bars(comparison: &TimeComparison) -> Vec<ChartBar> {
    let bar = |(name, samples): &(&'static str, Result<_, String>)| {
        let samples: &super::samples::TimeSamples = samples.as_ref().ok()?;
        Some(ChartBar { name, median: samples.percentile(50)?, spread: samples.percentile(95)? })
    };
    let mut bars: Vec<ChartBar> = comparison.results.iter().filter_map(bar).collect();
    bars.sort_by_key(|bar| bar.median);
    bars
}

/// Logarithmic scale that maps times to x coordinates, between two whole powers of ten.
struct TimeScale {
    low: i32,
    high: i32,
}

impl TimeScale {
    fn for_bars<'a>(bars: impl Iterator<Item = &'a ChartBar>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for bar in bars {
            low = low.min(exponent(bar.median));
            high = high.max(exponent(bar.spread));
        }
        if low > high {
            return Self { low: 0, high: 1 };
        }
        let low = low.floor() as i32;
        Self { low, high: (high.ceil() as i32).max(low + 1) }
    }

    fn x_of(&self, exponent: f64) -> f64 {
        let share = (exponent - f64::from(self.low)) / f64::from(self.high - self.low);
        LABELS + share * (WIDTH - LABELS - VALUES)
    }
}

/// Returns the base-10 logarithm of a time in milliseconds.
fn exponent(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).max(1e-3).log10()
}

fn draw_group(
    svg: &mut String,
    scale: &TimeScale,
    top: f64,
    command: &str,
    bars: &[ChartBar],
) -> f64 {
    let first = top + HEAD;
    let bottom = first + bars.len() as f64 * ROW;
    let mut line = |text: String| writeln!(svg, "{text}").expect("writing to a String cannot fail");
    line(format!(
        "<text class=\"head\" x=\"8\" y=\"{:.1}\">{}</text>",
        top + 26.0,
        escape(command)
    ));
    for power in scale.low..=scale.high {
        let x = scale.x_of(f64::from(power));
        line(format!(
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{first:.1}\" x2=\"{x:.1}\" \
             y2=\"{bottom:.1}\"/>"
        ));
        let label = format!("{} ms", 10_f64.powi(power));
        let y = bottom + 16.0;
        line(format!(
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>"
        ));
    }
    for (index, bar) in bars.iter().enumerate() {
        let y = first + index as f64 * ROW;
        let (end, far) = (scale.x_of(exponent(bar.median)), scale.x_of(exponent(bar.spread)));
        let class = if bar.name.starts_with("ringfence") { "ours" } else { "peer" };
        let (text, middle) = (y + 16.0, y + ROW / 2.0);
        line(format!(
            "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>",
            LABELS - 8.0,
            escape(bar.name)
        ));
        line(format!(
            "<rect class=\"{class}\" x=\"{LABELS:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\" rx=\"2\"/>",
            y + 4.0,
            (end - LABELS).max(1.0),
            ROW - 8.0
        ));
        line(format!(
            "<line class=\"spread\" x1=\"{end:.1}\" y1=\"{middle:.1}\" x2=\"{far:.1}\" \
             y2=\"{middle:.1}\"/>"
        ));
        let value = bar.median.as_secs_f64() * 1e3;
        line(format!("<text x=\"{:.1}\" y=\"{text:.1}\">{value:.2} ms</text>", far + 6.0));
    }
    bottom + FOOT
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::samples::TimeSamples;
    use super::*;

    fn comparison(times: &[(&'static str, u64)]) -> TimeComparison {
        let result = |&(name, microseconds): &(&'static str, u64)| {
            let mut samples = TimeSamples::default();
            samples.extend([Duration::from_micros(microseconds)]);
            (name, Ok(samples))
        };
        let results = times.iter().map(result).collect();
        TimeComparison {
            title: "sh -c 'a < b && c'".to_owned(),
            yardstick: "a",
            note: None,
            results,
        }
    }

    #[test]
    fn the_scale_runs_between_whole_powers_of_ten() {
        let bars = bars(&comparison(&[("a", 600), ("b", 36_000)]));
        let scale = TimeScale::for_bars(bars.iter());
        assert_eq!((scale.low, scale.high), (-1, 2));
        assert!((scale.x_of(-1.0) - LABELS).abs() < 1e-9);
        assert!((scale.x_of(2.0) - (WIDTH - VALUES)).abs() < 1e-9);
    }

    #[test]
    fn a_tenfold_time_is_a_fixed_step_longer() {
        let scale = TimeScale { low: 0, high: 3 };
        let step = |from: f64| scale.x_of(from + 1.0) - scale.x_of(from);
        assert!((step(0.0) - step(2.0)).abs() < 1e-9);
    }

    #[test]
    fn the_fastest_bar_comes_first_and_ringfences_bars_are_marked() {
        let svg = draw(&[comparison(&[
            ("bwrap", 4000),
            ("ringfence, native", 1500),
            ("plain spawn", 600),
        ])]);
        let place = |name: &str| svg.find(&format!(">{name}</text>")).unwrap();
        assert!(
            place("plain spawn") < place("ringfence, native")
                && place("ringfence, native") < place("bwrap")
        );
        assert_eq!(svg.matches("class=\"ours\"").count(), 1);
        assert_eq!(svg.matches("class=\"peer\"").count(), 2);
    }

    #[test]
    fn a_command_is_escaped() {
        let svg = draw(&[comparison(&[("a", 1000)])]);
        assert!(svg.contains("sh -c 'a &lt; b &amp;&amp; c'"), "{svg}");
    }

    #[test]
    fn a_chart_without_bars_is_still_a_chart() {
        assert!(draw(&[comparison(&[])]).ends_with("</svg>\n"));
    }
}
