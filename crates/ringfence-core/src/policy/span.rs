//! Spans of time, with units.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time of at least one millisecond, written as `500ms`, `30s`, `2m` or `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    milliseconds: u64,
}

/// Units with their number of milliseconds, in the order in which a span is written.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Span {
    /// Creates a span from a number of seconds. Zero becomes one millisecond.
    pub const fn seconds(seconds: u32) -> Self {
        Span { milliseconds: if seconds == 0 { 1 } else { seconds as u64 * 1_000 } }
    }

    /// Returns the span as a standard [`Duration`].
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }
}

/// Rounds a duration up to whole milliseconds, and zero to one millisecond.
impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        let milliseconds = duration.as_nanos().div_ceil(1_000_000);
        Span { milliseconds: u64::try_from(milliseconds).unwrap_or(u64::MAX).max(1) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.milliseconds;
        for (unit, factor) in UNITS {
            let count = rest / factor;
            rest %= factor;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

/// Reason why a text is not a span of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpanError {
    /// The text is empty.
    #[error("a duration cannot be empty: write for example `30s`")]
    Empty,
    /// The text starts with a minus sign.
    #[error("`{0}` is negative: a duration is more than 0")]
    Negative(String),
    /// The parts of the text add up to zero.
    #[error("`{0}` is no time at all: a duration is more than 0; leave it out for no limit")]
    Zero(String),
    /// A number has no unit.
    #[error("`{0}` needs a unit: write for example `{0}s` or `{0}m`")]
    NoUnit(String),
    /// A part of the text does not start with a digit, or has a fraction.
    #[error(
        "`{0}` is not made of whole numbers and units: write for example `30s`, `1500ms` or `1h30m`"
    )]
    NotWhole(String),
    /// The text after a number is not a known unit.
    #[error("`{text}` has an unknown unit `{unit}`: it is one of ms, s, m, h, d")]
    UnknownUnit {
        /// The whole text that was parsed.
        text: String,
        /// Text after the number, which should be a unit.
        unit: String,
    },
    /// A unit repeats, or a larger unit follows a smaller one.
    #[error(
        "`{0}` has its units out of order: write the largest first and each once, such as `1h30m`"
    )]
    OutOfOrder(String),
    /// The number of milliseconds does not fit in 64 bits.
    #[error("`{0}` is too long")]
    TooLong(String),
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(SpanError::Empty);
        }
        if text.starts_with('-') {
            return Err(SpanError::Negative(text.to_owned()));
        }
        let mut rest = text;
        let mut units = UNITS.as_slice();
        let mut milliseconds: u64 = 0;
        while !rest.is_empty() {
            let (digits, after) = split_where(rest, |character| !character.is_ascii_digit());
            let (unit, next) = split_where(after, |character| !character.is_alphabetic());
            if digits.is_empty() || (unit.is_empty() && !after.is_empty()) {
                return Err(SpanError::NotWhole(text.to_owned()));
            }
            if unit.is_empty() {
                return Err(SpanError::NoUnit(text.to_owned()));
            }
            let Some((_, factor)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
                return Err(SpanError::UnknownUnit {
                    text: text.to_owned(),
                    unit: unit.to_owned(),
                });
            };
            let Some(place) = units.iter().position(|(name, _)| *name == unit) else {
                return Err(SpanError::OutOfOrder(text.to_owned()));
            };
            let count: Option<u64> = digits.parse().ok();
            milliseconds = count
                .and_then(|count| count.checked_mul(factor))
                .and_then(|part| part.checked_add(milliseconds))
                .ok_or_else(|| SpanError::TooLong(text.to_owned()))?;
            // Only smaller units may follow, so that each unit occurs once and the largest comes
            // first.
            units = &units[place + 1..];
            rest = next;
        }
        if milliseconds == 0 {
            return Err(SpanError::Zero(text.to_owned()));
        }
        Ok(Span { milliseconds })
    }
}

/// Splits the text in front of the first character for which `ends` is true.
fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

crate::policy::text::serde_as_text!(Span, "a duration such as `500ms`, `30s`, `2m` or `1h30m`");

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, milliseconds: u64, shown: &str) {
        let span: Span = text.parse().unwrap();
        assert_eq!(
            (span.duration(), span.to_string().as_str()),
            (Duration::from_millis(milliseconds), shown)
        );
        assert_eq!(
            span.to_string().parse::<Span>().unwrap(),
            span,
            "what is shown must parse to the same span"
        );
    }

    #[track_caller]
    fn refuse(text: &str, message: &str) {
        assert_eq!(text.parse::<Span>().unwrap_err().to_string(), message);
    }

    #[test]
    fn spans_are_numbers_with_units_largest_first() {
        check("500ms", 500, "500ms");
        check("30s", 30_000, "30s");
        check("90s", 90_000, "1m30s");
        check("2m", 120_000, "2m");
        check("8h", 28_800_000, "8h");
        check("1h30m", 5_400_000, "1h30m");
        check("1d2h3m4s5ms", 93_784_005, "1d2h3m4s5ms");
    }

    #[test]
    fn each_wrong_span_is_refused_with_its_own_message() {
        refuse("", "a duration cannot be empty: write for example `30s`");
        refuse("-3s", "`-3s` is negative: a duration is more than 0");
        refuse(
            "0s",
            "`0s` is no time at all: a duration is more than 0; leave it out for no limit",
        );
        refuse("30", "`30` needs a unit: write for example `30s` or `30m`");
        let not_whole =
            "is not made of whole numbers and units: write for example `30s`, `1500ms` or `1h30m`";
        refuse("1.5s", &format!("`1.5s` {not_whole}"));
        refuse("1 h", &format!("`1 h` {not_whole}"));
        refuse("s", &format!("`s` {not_whole}"));
        refuse("3weeks", "`3weeks` has an unknown unit `weeks`: it is one of ms, s, m, h, d");
        let order =
            "has its units out of order: write the largest first and each once, such as `1h30m`";
        refuse("30m1h", &format!("`30m1h` {order}"));
        refuse("1s1s", &format!("`1s1s` {order}"));
        refuse("99999999999999999999s", "`99999999999999999999s` is too long");
        refuse("18446744073709551615ms1ms", &format!("`18446744073709551615ms1ms` {order}"));
        refuse("213503982335d", "`213503982335d` is too long");
    }

    #[test]
    fn a_standard_duration_rounds_up_and_never_to_nothing() {
        assert_eq!(Span::from(Duration::ZERO).to_string(), "1ms");
        assert_eq!(Span::from(Duration::from_micros(1500)).to_string(), "2ms");
        assert_eq!(Span::from(Duration::from_secs(30)), Span::seconds(30));
    }
}
