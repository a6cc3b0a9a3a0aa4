//! The Landlock query that the `landlock` library does not make public.

/// Returns the Landlock ABI version of the running kernel, landlock_create_ruleset(2). The version
/// is 0 if the kernel has no Landlock or Landlock is disabled.
pub fn abi() -> u32 {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    let nothing = std::ptr::null::<u8>();
    // SAFETY: with LANDLOCK_CREATE_RULESET_VERSION the attribute must be null and its size 0;
    // nothing is read.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            nothing,
            0usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}
