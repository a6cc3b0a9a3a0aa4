//! VersionNumber numbers of the programs that backends use.

/// VersionNumber number. A release candidate is less than its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VersionNumber {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) patch: u32,
    /// Number of the release candidate, or `u32::MAX` for a release.
    pub(crate) candidate: u32,
}

impl VersionNumber {
    pub(crate) const fn new(major: u32, minor: u32, patch: u32) -> VersionNumber {
        VersionNumber { major, minor, patch, candidate: u32::MAX }
    }

    /// Parses the numbers at the start of a text such as `1.1.5+ds1` or `1.4.0-rc.2`.
    pub(crate) fn parse(text: &str) -> Option<VersionNumber> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let mut numbers = numbers
            .split('.')
            .filter(|number| !number.is_empty())
            .map(|number| number.parse().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        let patch = numbers.next().flatten().unwrap_or(0);
        let candidate =
            rest.strip_prefix(['-', '~']).and_then(|rest| rest.strip_prefix("rc")).map(|rest| {
                let digits: String =
                    rest.trim_start_matches('.').chars().take_while(char::is_ascii_digit).collect();
                digits.parse().unwrap_or(0)
            });
        Some(VersionNumber { major, minor, patch, candidate: candidate.unwrap_or(u32::MAX) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let parse = |text| VersionNumber::parse(text).unwrap();
        assert_eq!(parse("1.1.5+ds1"), VersionNumber::new(1, 1, 5));
        assert_eq!(parse("4.3"), VersionNumber::new(4, 3, 0));
        assert!(parse("1.4.0-rc.2") < parse("1.4.0-rc.3") && parse("1.4.0~rc3") < parse("1.4.0"));
        assert!(parse("1.10.0") > parse("1.9.9"));
        assert_eq!(VersionNumber::parse("of an unknown version"), None);
    }
}
