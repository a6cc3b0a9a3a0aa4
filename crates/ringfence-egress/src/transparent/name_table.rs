//! Addresses that stand for host names.
//!
//! A program that does not know the proxy connects to an address. Each name gets an address of its
//! own, so that the rules can judge the name. Such an address has a meaning only in one sandbox,
//! and for as long as that sandbox lives.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use ringfence_core::policy::HostName;

/// First address that stands for a name. The addresses are in a range that is reserved for tests of
/// network devices (RFC 2544). The 256 addresses before this one belong to the tunnel itself.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);
/// Most names that may have an address: far more than an honest program asks for, and far fewer
/// than the range has addresses.
const MAX_NAMES: usize = 8192;

/// Host names that have an address.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    places: HashMap<HostName, usize>,
    names: Vec<HostName>,
}

impl NameTable {
    /// Returns the address that stands for `name`, or `None` if too many names have an address.
    pub(super) fn assign_address(&mut self, name: &HostName) -> Option<Ipv4Addr> {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None if self.names.len() == MAX_NAMES => return None,
            None => {
                self.names.push(name.clone());
                self.places.insert(name.clone(), self.names.len() - 1);
                self.names.len() - 1
            }
        };
        let place = u32::try_from(place).expect("there are fewer names than addresses");
        Some(Ipv4Addr::from_bits(FIRST_ADDRESS.to_bits() + place))
    }

    /// Returns the name that `address` stands for.
    pub(super) fn name_at(&self, address: Ipv4Addr) -> Option<&HostName> {
        let place = address.to_bits().checked_sub(FIRST_ADDRESS.to_bits())?;
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
        let mut names = NameTable::default();
        let first = names.assign_address(&name("a.org")).unwrap();
        let second = names.assign_address(&name("b.org")).unwrap();
        assert_ne!(first, second);
        assert_eq!(names.assign_address(&name("a.org")), Some(first));
        assert_eq!(names.name_at(first), Some(&name("a.org")));
        assert_eq!(names.name_at(second), Some(&name("b.org")));
    }

    #[test]
    fn an_unassigned_address_has_no_name() {
        let mut names = NameTable::default();
        let given = names.assign_address(&name("a.org")).unwrap();
        for bits in [0, given.to_bits() - 1, given.to_bits() + 1, u32::MAX] {
            assert_eq!(names.name_at(bits.into()), None);
        }
    }

    #[test]
    fn the_number_of_names_with_addresses_is_limited() {
        let mut names = NameTable::default();
        let first = names.assign_address(&name("n0.a.org"));
        let given = (0..2 * MAX_NAMES)
            .filter_map(|number| names.assign_address(&name(&format!("n{number}.a.org"))))
            .count();
        assert_eq!(given, MAX_NAMES);
        assert_eq!(names.assign_address(&name("n0.a.org")), first);
    }
}
