//! The matrix of virtual hosts: each has a kernel, a Debian system and the checks that run on the
//! host.

/// A stock kernel of Debian: the newest kernel of its suite.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KernelSeries {
    pub(super) version: &'static str,
    /// Suite whose default kernel has this version.
    pub(super) suite: &'static str,
}

const LINUX_5_10: KernelSeries = KernelSeries { version: "5.10", suite: "bullseye" };
const LINUX_6_1: KernelSeries = KernelSeries { version: "6.1", suite: "bookworm" };
const LINUX_6_12: KernelSeries = KernelSeries { version: "6.12", suite: "trixie" };

/// One virtual host, which is a row of the matrix.
#[derive(Debug)]
pub(crate) struct KernelCase {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) kernel: KernelSeries,
    /// Suite of the root file system.
    pub(super) suite: &'static str,
    /// Additional words of the kernel command line.
    pub(super) kernel_words: &'static [&'static str],
    pub(super) checks: &'static [&'static str],
}

/// Checks for a host on which everything should work, in the order in which they run. Each check is
/// a file of tests/kernels/inside/checks.
const ALL_CHECKS: &[&str] = &[
    "doctor",
    "promises",
    "first",
    "streams",
    "limits",
    "units",
    "subtree",
    "swap",
    "namespaces",
    "tiers",
    "stay",
    "podman",
    "files",
    "prove",
];

/// Checks for a host that differs from another only in its security modules.
const ISOLATION_CHECKS: &[&str] =
    &["doctor", "promises", "first", "streams", "namespaces", "tiers", "stay", "files", "prove"];

/// Checks of a host on which neither `native` nor `bwrap` works.
const REFUSAL_CHECKS: &[&str] = &["doctor", "promises", "refused"];

/// Checks of a host whose administrator restricts user namespaces.
const APPARMOR_CHECKS: &[&str] = &["apparmor", "namespaces"];

/// Name of the cell that `cargo xtask test` boots.
pub(super) const QUICK_CELL: &str = "6.1";

/// Checks that `cargo xtask test` runs. They take at most three minutes under emulation.
pub(super) const QUICK_CHECKS: &[&str] = &["first", "streams", "scope", "subtree", "stay"];

pub(super) const CELLS: &[KernelCase] = &[
    KernelCase {
        name: "5.10",
        about: "an old kernel, without Landlock, below a current system",
        kernel: LINUX_5_10,
        suite: "bookworm",
        kernel_words: &[],
        checks: ALL_CHECKS,
    },
    KernelCase {
        name: "5.10-bullseye",
        about: "Debian 11, whose kernel and bubblewrap are too old to isolate",
        kernel: LINUX_5_10,
        suite: "bullseye",
        kernel_words: &[],
        checks: REFUSAL_CHECKS,
    },
    KernelCase {
        name: "6.1",
        about: "Debian 12, with Landlock's ABI 2",
        kernel: LINUX_6_1,
        suite: "bookworm",
        kernel_words: &[],
        checks: ALL_CHECKS,
    },
    KernelCase {
        name: "6.1-no-landlock",
        about: "Debian 12 with Landlock left out of the security modules",
        kernel: LINUX_6_1,
        suite: "bookworm",
        kernel_words: &["lsm=lockdown,yama,apparmor"],
        checks: ISOLATION_CHECKS,
    },
    KernelCase {
        name: "6.12",
        about: "Debian 13",
        kernel: LINUX_6_12,
        suite: "trixie",
        kernel_words: &[],
        checks: ALL_CHECKS,
    },
    KernelCase {
        name: "6.12-apparmor",
        about: "Debian 13 whose AppArmor restricts user namespaces",
        kernel: LINUX_6_12,
        suite: "trixie",
        kernel_words: &[],
        checks: APPARMOR_CHECKS,
    },
];

/// Finds a cell by its name.
pub(super) fn find_cell(name: &str) -> Option<&'static KernelCase> {
    CELLS.iter().find(|cell| cell.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn check_files() -> BTreeSet<String> {
        let directory =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kernels/inside/checks");
        let files = crate::workspace::files_below(&directory).unwrap();
        files.iter().map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn names_of_cells_are_unique() {
        let names: BTreeSet<&str> = CELLS.iter().map(|cell| cell.name).collect();
        assert_eq!(names.len(), CELLS.len());
    }

    #[test]
    fn every_check_has_a_file_and_every_file_is_used() {
        let used: BTreeSet<String> = CELLS
            .iter()
            .flat_map(|cell| cell.checks)
            .chain(QUICK_CHECKS)
            .map(|check| (*check).to_owned())
            .collect();
        assert_eq!(used, check_files());
    }

    #[test]
    fn the_quick_cell_exists() {
        assert!(find_cell(QUICK_CELL).is_some());
    }
}
