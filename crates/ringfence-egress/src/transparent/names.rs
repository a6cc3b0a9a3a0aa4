//! Addresses that stand for names.
//!
//! A program that knows no proxy connects to an address. So that the rules can be asked about a name, each name has an
//! address of its own, which means something in one sandbox only, and there for as long as it lives.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use ringfence_core::policy::HostName;

/// The first of the addresses. They lie in a range that is set aside for tests of devices (RFC 2544); the 256 before
/// this one are the tunnel's own.
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);
/// How many names may have an address: far more than anything honest asks for, far less than the range has.
const MOST: usize = 8192;

/// The names that have an address.
#[derive(Debug, Default)]
pub(super) struct Names {
    places: HashMap<HostName, usize>,
    names: Vec<HostName>,
}

impl Names {
    /// The address that stands for `name`; none when there are too many.
    pub(super) fn address(&mut self, name: &HostName) -> Option<Ipv4Addr> {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None if self.names.len() == MOST => return None,
            None => {
                self.names.push(name.clone());
                self.places.insert(name.clone(), self.names.len() - 1);
                self.names.len() - 1
            }
        };
        let place = u32::try_from(place).expect("there are fewer names than addresses");
        Some(Ipv4Addr::from_bits(FIRST.to_bits() + place))
    }

    /// The name that `address` stands for.
    pub(super) fn name(&self, address: Ipv4Addr) -> Option<&HostName> {
        let place = address.to_bits().checked_sub(FIRST.to_bits())?;
        self.names.get(usize::try_from(place).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_keeps_its_address_and_shares_it_with_no_other() {
        let mut names = Names::default();
        let first = names.address(&name("a.org")).unwrap();
        let second = names.address(&name("b.org")).unwrap();
        assert_ne!(first, second);
        assert_eq!(names.address(&name("a.org")), Some(first));
        assert_eq!(names.name(first), Some(&name("a.org")));
        assert_eq!(names.name(second), Some(&name("b.org")));
    }

    #[test]
    fn an_address_that_was_given_to_no_name_stands_for_none() {
        let mut names = Names::default();
        let given = names.address(&name("a.org")).unwrap();
        for bits in [0, given.to_bits() - 1, given.to_bits() + 1, u32::MAX] {
            assert_eq!(names.name(bits.into()), None);
        }
    }

    #[test]
    fn there_are_only_so_many() {
        let mut names = Names::default();
        let first = names.address(&name("n0.a.org"));
        let given = (0..2 * MOST).filter_map(|number| names.address(&name(&format!("n{number}.a.org")))).count();
        assert_eq!(given, MOST);
        assert_eq!(names.address(&name("n0.a.org")), first);
    }
}
