//! Wrappers: executables that run a program sandboxed, with their caller's arguments.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Settings;

/// The second line of every wrapper, by which one is known again.
const MARK: &str = "# Made by `ringfence wrap`; removed by `ringfence unwrap`.";

/// A wrapper on disk. It is removed when this is dropped, unless it is [kept](Wrapper::keep).
#[derive(Debug)]
pub struct Wrapper {
    path: PathBuf,
    is_kept: bool,
}

/// A wrapper could not be made or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WrapperError {
    /// The host has no place for it.
    #[error("cannot find a directory for wrappers: neither XDG_STATE_HOME nor HOME is set")]
    Nowhere,
    /// The program that it is to run is not there.
    #[error("cannot find the program `{program}` on the host")]
    NoProgram {
        /// Which.
        program: PathBuf,
    },
    /// A path has a character that a shell script cannot hold safely.
    #[error("cannot write `{path}` into a wrapper: it is not text")]
    NotText {
        /// Which.
        path: PathBuf,
    },
    /// A file could not be written or removed.
    #[error("cannot {action} the wrapper `{path}`")]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It is not one of ours.
    #[error("`{path}` is not a wrapper that ringfence made")]
    NotAWrapper {
        /// Which.
        path: PathBuf,
    },
}

impl Wrapper {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it on disk, for [`remove`] to find, and returns where it is.
    pub fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }

    /// Removes it.
    pub fn cleanup(mut self) -> Result<(), WrapperError> {
        self.is_kept = true;
        remove(&self.path)
    }

    /// Makes a wrapper that runs `ringfence run` with `words`, the policy's flags and then the program, and its
    /// own arguments after them.
    pub fn make(
        settings: &Settings,
        ringfence: &Path,
        program: &Path,
        words: &[String],
    ) -> Result<Wrapper, WrapperError> {
        let directory = settings.host.own_directory("XDG_STATE_HOME", ".local/state").ok_or(WrapperError::Nowhere)?;
        let directory = directory.join("wrappers");
        let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
        let ringfence = ringfence.to_str().ok_or_else(|| WrapperError::NotText { path: ringfence.into() })?;
        let text = format!("#!/bin/sh\n{MARK}\nexec {} run {} \"$@\"\n", quote(ringfence), quoted.join(" "));
        let mut attempt = 0u32;
        loop {
            let path = directory.join(format!("{name}-{}-{attempt}", std::process::id()));
            let failed = |action| {
                let path = path.clone();
                move |source| WrapperError::File { action, path, source }
            };
            fs_err::create_dir_all(&directory).map_err(failed("make a directory for"))?;
            let opened = fs_err::OpenOptions::new().write(true).create_new(true).open(&path);
            match opened {
                Ok(mut file) => {
                    let wrapper = Wrapper { path: path.clone(), is_kept: false };
                    io::Write::write_all(&mut file, text.as_bytes()).map_err(failed("write"))?;
                    let mode = std::fs::Permissions::from_mode(0o755);
                    fs_err::set_permissions(&path, mode).map_err(failed("make executable"))?;
                    return Ok(wrapper);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
                Err(source) => return Err(failed("create")(source)),
            }
        }
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = remove(&self.path); // a later `unwrap` can still do it
        }
    }
}

/// Makes a wrapper for a library: the policy goes along as a file's worth of flags.
pub(crate) fn create(settings: &Settings, repository: &Path, program: &Path) -> Result<Wrapper, WrapperError> {
    let text =
        |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| WrapperError::NotText { path: path.into() });
    let found = find(settings, program).ok_or_else(|| WrapperError::NoProgram { program: program.into() })?;
    let ringfence = match &settings.launcher {
        Some(launcher) => launcher.clone(),
        None => {
            find(settings, Path::new("ringfence")).ok_or(WrapperError::NoProgram { program: "ringfence".into() })?
        }
    };
    let policy = serde_json::to_string(&settings.policy).expect("a policy has only string keys");
    let repository = text(&settings.host.absolute(repository))?;
    let words =
        ["--policy-json".to_owned(), policy, "--workspace".to_owned(), repository, "--".to_owned(), text(&found)?];
    let wrapper = Wrapper::make(settings, &ringfence, &found, &words)?;
    tracing::debug!(path = %wrapper.path().display(), sandbox.select = %settings.selection, "made a wrapper");
    Ok(wrapper)
}

/// Removes a wrapper, if it is one.
pub fn remove(path: &Path) -> Result<(), WrapperError> {
    let failed = |action| {
        let path = path.to_path_buf();
        move |source| WrapperError::File { action, path, source }
    };
    let text = fs_err::read(path).map_err(failed("read"))?;
    if String::from_utf8_lossy(&text).lines().nth(1) != Some(MARK) {
        return Err(WrapperError::NotAWrapper { path: path.into() });
    }
    fs_err::remove_file(path).map_err(failed("remove"))
}

/// Finds a program as the caller's shell would.
pub(crate) fn find(settings: &Settings, program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        let path = settings.host.absolute(program);
        return path.is_file().then_some(path);
    }
    let path = settings.host.variables.get(std::ffi::OsStr::new("PATH"))?;
    std::env::split_paths(path).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// A word that a shell reads as itself.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_cannot_end_its_quotes() {
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's; rm -rf /"), r"'it'\''s; rm -rf /'");
    }
}
