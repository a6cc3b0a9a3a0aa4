//! `POST /files`: writes the files that a client sends.
//!
//! An existing file is written in place, as envd does, so that its inode, mode, links and watchers
//! stay. A temporary file and a rename would keep the old contents until the upload is complete,
//! but would lose all of these, and a watcher would see events for a name that no client wrote. Two
//! cheap measures limit the damage of an interrupted upload: the file is not touched before the
//! first slice (or the end of a shorter body) has arrived, and a new file is removed again.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::Stream;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::content;
use ringfence_proto::filesystem::WrittenFile;
use ringfence_proto::query::UrlQuery;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchown, fstat, ftruncate, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::Uid;

use super::download::refuse_unless_regular;
use super::form::UploadForm;
use crate::connect_protocol::{Reply, json_reply};
use crate::filesystem::metadata::{self, FileMetadata};
use crate::filesystem::path::{NameInDirectory, path_failure, resolve};
use crate::filesystem::run_blocking;
use crate::gzip::{self, GzipDecoder};
use crate::slices::{ByteSink, SinkWriter, body_stream, discard, write_stream};
use crate::user::SandboxUser;

/// Writes the files that a request carries, and replies with a list of them.
pub(super) async fn upload(
    query: &UrlQuery,
    user: SandboxUser,
    request: Request<Incoming>,
) -> Result<Reply, Failure> {
    let notes = metadata::parse_headers(request.headers());
    let compressed = gzip::is_sent(request.headers());
    let kind = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let mut body = body_stream(request.into_body());
    let written = async {
        let writing = UploadRequest { path: query.get("path"), user, notes: notes? };
        if compressed? {
            writing.write(&kind, &mut GzipDecoder::new(&mut body)).await
        } else {
            writing.write(&kind, &mut body).await
        }
    };
    let written = written.await;
    // A form can end before the body of its request does. Without this call, a client that still
    // has to send the rest would find the connection closed.
    discard(body).await;
    written.map(|written| json_reply(StatusCode::OK, &written))
}

/// Parameters that all files of one request share.
struct UploadRequest<'a> {
    path: Option<&'a str>,
    user: SandboxUser,
    notes: FileMetadata,
}

impl UploadRequest<'_> {
    async fn write<S>(&self, kind: &str, body: &mut S) -> Result<Vec<WrittenFile>, Failure>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + Unpin,
    {
        let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if essence == content::OCTETS {
            let Some(path) = self.path else {
                let message = "path query parameter is required for raw body upload";
                return Err(Failure::new(Code::InvalidArgument, message));
            };
            let upload = self.begin_file(path)?;
            return Ok(vec![complete(write_stream(body, upload).await?).await?]);
        }
        if essence.starts_with("multipart/") {
            return self.write_form(UploadForm::new(kind, body)?).await;
        }
        let message = format!(
            "unsupported content type: {kind}, expected multipart/form-data or \
             application/octet-stream"
        );
        Err(Failure::new(Code::InvalidArgument, message))
    }

    /// Writes the files of a form. The destination is the path of the request, else the file name
    /// of each file, which is a full path.
    async fn write_form(&self, mut form: UploadForm<'_>) -> Result<Vec<WrittenFile>, Failure> {
        let mut written: Vec<WrittenFile> = Vec::new();
        while let Some(mut field) = form.next_file().await? {
            let named = self.path.or(field.name()).map(str::to_owned);
            let named = named.ok_or_else(|| {
                Failure::new(
                    Code::InvalidArgument,
                    "a file of the form has no name, and the request has no path",
                )
            })?;
            let upload = self.begin_file(&named)?;
            let path = upload.path.to_string_lossy();
            if written.iter().any(|file| file.path == path) {
                let message = format!(
                    "you cannot upload multiple files to the same path '{path}' in one upload \
                     request, \
                     only the first specified file was uploaded"
                );
                return Err(Failure::new(Code::InvalidArgument, message));
            }
            let mut pouring = SinkWriter::new(upload);
            while let Some(bytes) = field.chunk().await? {
                pouring.push(&bytes).await?;
            }
            written.push(complete(pouring.finish().await?).await?);
        }
        Ok(written)
    }

    fn begin_file(&self, path: &str) -> Result<FileUpload, Failure> {
        let path = resolve(path, &self.user)?;
        Ok(FileUpload { path, uid: self.user.uid, notes: self.notes.clone(), target: None })
    }
}

async fn complete(upload: FileUpload) -> Result<WrittenFile, Failure> {
    run_blocking(move || upload.complete()).await
}

/// File that is being written.
struct FileUpload {
    path: PathBuf,
    uid: u32,
    notes: FileMetadata,
    /// Open file; `None` until there is something to write.
    target: Option<UploadTarget>,
}

struct UploadTarget {
    file: File,
    place: NameInDirectory,
    /// True if this upload created the file, so the file is removed unless the upload completes.
    new: bool,
}

impl FileUpload {
    fn target(&mut self) -> Result<&mut UploadTarget, Failure> {
        let target = match self.target.take() {
            Some(target) => target,
            None => self.open()?,
        };
        Ok(self.target.insert(target))
    }

    fn open(&self) -> Result<UploadTarget, Failure> {
        let failed = |error: Errno| path_failure("write", &self.path, &error.into());
        let place = NameInDirectory::with_parents(&self.path)
            .map_err(|error| path_failure("make the directory of", &self.path, &error))?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let made = openat(
            &place.directory,
            &place.name,
            flags | OFlags::CREATE | OFlags::EXCL,
            new_file_mode(),
        );
        let new = made.is_ok();
        let file = match made {
            Err(Errno::EXIST | Errno::ISDIR) => open_existing(&place, &self.path)?,
            made => made.map_err(failed)?,
        };
        let target = UploadTarget { file: file.into(), place, new };
        // fchown(2) is also called for a file that was created here, although it changes nothing
        // there: watchers expect the event that fchown(2) causes, as with envd. The call fails if
        // another user owns the file and lets this user write it.
        let _ = fchown(&target.file, Some(Uid::from_raw(self.uid)), None);
        if !new {
            ftruncate(&target.file, 0).map_err(failed)?;
        }
        if !new || !self.notes.is_empty() {
            metadata::replace_metadata(target.file.as_fd(), &self.notes)
                .map_err(|error| self.metadata_failure(error, target.new, &target.place))?;
        }
        Ok(target)
    }

    fn metadata_failure(&self, error: Errno, new: bool, place: &NameInDirectory) -> Failure {
        if new {
            // Ignore the error: the file then stays, and is empty.
            let _ = unlinkat(&place.directory, &place.name, AtFlags::empty());
        }
        path_failure("keep the metadata of", &self.path, &error.into())
    }

    fn complete(mut self) -> Result<WrittenFile, Failure> {
        self.target()?;
        // The file is complete, so `drop` must not remove it.
        self.target = None;
        Ok(WrittenFile {
            path: self.path.to_string_lossy().into_owned(),
            name: self.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            kind: "file".to_owned(),
            metadata: std::mem::take(&mut self.notes),
        })
    }
}

impl ByteSink for FileUpload {
    fn take(&mut self, slice: &[u8]) -> Result<(), Failure> {
        let written = self.target()?.file.write_all(slice);
        written.map_err(|error| path_failure("write", &self.path, &error))
    }
}

impl Drop for FileUpload {
    fn drop(&mut self) {
        let Some(UploadTarget { file, place, new: true }) = &self.target else { return };
        // Another process may have put a different file at this name, which must stay.
        let is_ours = fstat(file).is_ok_and(|ours| {
            statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino))
        });
        if is_ours {
            // Ignore the error: the incomplete file then stays.
            let _ = unlinkat(&place.directory, &place.name, AtFlags::empty());
        }
    }
}

/// Opens an existing regular file for writing. A file of another type is never opened for writing,
/// because a FIFO would block and a device may act on being opened.
fn open_existing(place: &NameInDirectory, path: &Path) -> Result<std::os::fd::OwnedFd, Failure> {
    let failed = |error: Errno| path_failure("write", path, &error.into());
    let found = match openat(
        &place.directory,
        &place.name,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        // The name is a symbolic link whose target does not exist. Create the file at the target.
        Err(Errno::NOENT) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
            openat(&place.directory, &place.name, flags, new_file_mode())
        }
        found => found,
    };
    let found = found.map_err(failed)?;
    refuse_unless_regular(path, fstat(&found).map_err(failed)?.st_mode)?;
    openat(
        CWD,
        format!("/proc/self/fd/{}", found.as_raw_fd()),
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(failed)
}

/// Returns the mode of a new file, from which the kernel removes the bits of the guest's umask.
fn new_file_mode() -> Mode {
    Mode::from_raw_mode(0o666)
}
