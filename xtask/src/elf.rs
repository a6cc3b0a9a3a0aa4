//! Parser of just enough of the ELF format, elf(5), to distinguish a static program from a program
//! that needs a loader.

use anyhow::{Context, Result, bail, ensure};

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;

/// Fails if a program names an interpreter or a shared library.
///
/// A dynamic section alone does not show that a program is dynamic: a static program that can be
/// loaded at any address (static-pie) has a dynamic section to relocate itself.
pub(crate) fn ensure_static(image: &[u8]) -> Result<()> {
    ensure!(image.starts_with(b"\x7fELF"), "it is not an ELF file");
    ensure!(image.get(4..6) == Some(&[2, 1]), "it is not a 64-bit little-endian ELF file");
    let table = number::<8>(image, 32)?;
    let (size, count) = (number::<2>(image, 54)?, number::<2>(image, 56)?);
    ensure!(count > 0, "it has no program headers");
    for index in 0..count {
        let header = table + index * size;
        match u32::try_from(number::<4>(image, header)?)? {
            PT_INTERP => bail!("it names a program interpreter"),
            PT_DYNAMIC => {
                let (start, length) =
                    (number::<8>(image, header + 8)?, number::<8>(image, header + 32)?);
                ensure_needs_nothing(image, start, length)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn ensure_needs_nothing(image: &[u8], start: u64, length: u64) -> Result<()> {
    for entry in (start..start.saturating_add(length)).step_by(16) {
        match number::<8>(image, entry)? {
            DT_NULL => break,
            DT_NEEDED => bail!("it needs a shared library"),
            _ => {}
        }
    }
    Ok(())
}

/// Reads a little-endian number of `N` bytes at `offset`.
fn number<const N: usize>(image: &[u8], offset: u64) -> Result<u64> {
    let start = usize::try_from(offset)?;
    let bytes = start.checked_add(N).and_then(|end| image.get(start..end));
    let bytes = bytes.with_context(|| format!("it is cut short at offset {offset}"))?;
    Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds an image with one program header of type `kind`, and a dynamic section with `tags`.
    fn image(kind: u32, tags: &[u64]) -> Vec<u8> {
        let mut image = vec![0; 64];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[32] = 64; // e_phoff
        image[54] = 56; // e_phentsize
        image[56] = 1; // e_phnum
        let mut header = vec![0; 56];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&120_u64.to_le_bytes());
        header[32..40].copy_from_slice(&(tags.len() as u64 * 16).to_le_bytes());
        image.extend(header);
        image.extend(tags.iter().flat_map(|tag| [tag.to_le_bytes(), [0; 8]].concat()));
        image
    }

    #[track_caller]
    fn check(image: &[u8], expected: Result<(), &str>) {
        let found = ensure_static(image).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[test]
    fn a_program_with_only_loaded_segments_is_static() {
        check(&image(1, &[]), Ok(()));
    }

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        check(&image(PT_INTERP, &[]), Err("it names a program interpreter"));
    }

    #[test]
    fn a_dynamic_section_counts_only_when_it_needs_a_library() {
        check(&image(PT_DYNAMIC, &[5, 6, DT_NULL, DT_NEEDED]), Ok(()));
        check(&image(PT_DYNAMIC, &[5, DT_NEEDED, DT_NULL]), Err("it needs a shared library"));
    }

    #[test]
    fn a_truncated_image_is_an_error() {
        check(b"#!/bin/sh\n", Err("it is not an ELF file"));
        check(b"\x7fELF\x02\x01", Err("it is cut short at offset 32"));
        check(&image(PT_DYNAMIC, &[5])[..124], Err("it is cut short at offset 120"));
    }

    #[test]
    fn the_test_program_itself_has_an_interpreter() {
        let own = fs_err::read(std::env::current_exe().unwrap()).unwrap();
        check(&own, Err("it names a program interpreter"));
    }
}
