//! Sizes in bytes, with units.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, written as `512M`, `1G`, `10KiB` or `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// Units with their number of bytes, largest first. Each unit is 1024 times the next one.
const UNITS: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

impl Size {
    /// Creates a size from a number of bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Size(bytes)
    }

    /// Creates a size from a number of mebibytes, each 1024 × 1024 bytes.
    pub const fn mebibytes(mebibytes: u32) -> Self {
        Size((mebibytes as u64) << 20)
    }

    /// Returns the number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit =
            UNITS.into_iter().find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor));
        match unit {
            Some((letter, factor)) => write!(f, "{}{letter}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Reason why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// The text is empty.
    #[error("a size cannot be empty: write for example `512M`")]
    Empty,
    /// The text starts with a minus sign.
    #[error("`{0}` is negative: a size is 0 or more")]
    Negative(String),
    /// The text does not start with a digit, or has a fraction.
    #[error("`{0}` is not a whole number of bytes: write for example `512M`, `1G` or `1536M`")]
    NotWhole(String),
    /// The text after the number is not a known unit.
    #[error(
        "`{text}` has an unknown unit `{unit}`: it is one of K, M, G, T (each 1024 of the one \
         before)"
    )]
    UnknownUnit {
        /// The whole text that was parsed.
        text: String,
        /// Text after the number, without spaces around it.
        unit: String,
    },
    /// The number of bytes does not fit in 64 bits.
    #[error("`{0}` is too large: a size is less than 16777216T")]
    TooLarge(String),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(SizeError::Empty);
        }
        if text.starts_with('-') {
            return Err(SizeError::Negative(text.to_owned()));
        }
        let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        if digits.is_empty() || unit.starts_with(['.', ',']) {
            return Err(SizeError::NotWhole(text.to_owned()));
        }
        let factor = factor(unit).ok_or_else(|| SizeError::UnknownUnit {
            text: text.to_owned(),
            unit: unit.trim().to_owned(),
        })?;
        let number: Option<u64> = digits.parse().ok();
        number
            .and_then(|number| number.checked_mul(factor))
            .map(Size)
            .ok_or_else(|| SizeError::TooLarge(text.to_owned()))
    }
}

/// Returns the number of bytes of a unit, or `None` if the unit is unknown.
///
/// An empty unit and `B` are bytes. `K`, `KB` and `KiB` are 1024 bytes, and so on for the larger
/// units. Upper and lower case mean the same.
fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(1);
    }
    let (_, factor) = UNITS.into_iter().find(|(letter, _)| unit.starts_with(letter))?;
    matches!(&unit[1..], "" | "B" | "IB").then_some(factor)
}

crate::policy::text::serde_as_text!(
    Size,
    "a size such as `512M`, `1G` or `4096` (K, M, G and T are powers of 1024)"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, bytes: u64, shown: &str) {
        let size: Size = text.parse().unwrap();
        assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown));
        assert_eq!(
            size.to_string().parse::<Size>().unwrap(),
            size,
            "what is shown must parse to the same size"
        );
    }

    #[track_caller]
    fn refuse(text: &str, message: &str) {
        assert_eq!(text.parse::<Size>().unwrap_err().to_string(), message);
    }

    #[test]
    fn sizes_are_powers_of_1024_in_every_spelling() {
        check("0", 0, "0");
        check("1023", 1023, "1023");
        check("4096", 4096, "4K");
        check("10K", 10 << 10, "10K");
        check("512M", 512 << 20, "512M");
        check("512m", 512 << 20, "512M");
        check("512MB", 512 << 20, "512M");
        check("512MiB", 512 << 20, "512M");
        check("1G", 1 << 30, "1G");
        check("1536M", 1536 << 20, "1536M");
        check("2T", 2 << 40, "2T");
        check("7B", 7, "7");
        check("18446744073709551615", u64::MAX, "18446744073709551615");
    }

    #[test]
    fn each_wrong_size_is_refused_with_its_own_message() {
        refuse("", "a size cannot be empty: write for example `512M`");
        refuse("-1M", "`-1M` is negative: a size is 0 or more");
        refuse(
            "M",
            "`M` is not a whole number of bytes: write for example `512M`, `1G` or `1536M`",
        );
        refuse(
            "1.5G",
            "`1.5G` is not a whole number of bytes: write for example `512M`, `1G` or `1536M`",
        );
        refuse(
            "1Q",
            "`1Q` has an unknown unit `Q`: it is one of K, M, G, T (each 1024 of the one before)",
        );
        refuse(
            "1 é",
            "`1 é` has an unknown unit `é`: it is one of K, M, G, T (each 1024 of the one before)",
        );
        refuse("16777216T", "`16777216T` is too large: a size is less than 16777216T");
        refuse(
            "99999999999999999999",
            "`99999999999999999999` is too large: a size is less than 16777216T",
        );
    }
}
