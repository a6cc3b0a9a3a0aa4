//! Download of a container image, with a progress bar on a terminal.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use ringfence::images::{self, PullProgress};
use ringfence::{Pull, Sandbox, Settings, StartError, StartRequest};
use ringfence_core::settings::BackendSelection;
use ringfence_core::terminal::clean_line;

use crate::report::Failure;

/// Provides the image for the sandbox of `request`, and downloads it if `pull` says so. Does
/// nothing if the backend is not a container engine, or if the sandbox is up already.
pub(super) async fn fetch(settings: &Settings, request: &mut StartRequest) -> Result<(), Failure> {
    let BackendSelection::Only(backend) = settings.selection else { return Ok(()) };
    let is_up = match &request.name {
        Some(name) => Sandbox::attach(&settings.host, name).await.is_ok(),
        None => false,
    };
    if !images::is_engine(backend) || request.container.pull == Some(Pull::Never) || is_up {
        return Ok(());
    }
    let mut layers = Layers::default();
    let bar = ProgressBar::no_length().with_style(style("{msg}"));
    let mut progress = |progress: PullProgress| {
        bar.set_message(clean_line(&progress.status).into_owned());
        // Without the size of a part, a bar would appear full at zero bytes, so show only the
        // message until an engine reports a size.
        if let Some((done, total)) = layers.record(progress) {
            bar.set_style(style("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}"));
            bar.set_length(total);
            bar.set_position(done);
        }
    };
    let provided =
        images::provide(&settings.host, backend, &request.container, &mut progress).await;
    bar.finish_and_clear();
    provided.map_err(StartError::from)?;
    // The image was just provided, so the start must not download it a second time.
    request.container.pull = Some(Pull::Missing);
    Ok(())
}

fn style(progress: &str) -> ProgressStyle {
    ProgressStyle::with_template(&format!("fetching the image  {progress}"))
        .expect("the template is fixed text")
}

/// Download progress of each part of an image.
#[derive(Debug, Default)]
struct Layers {
    parts: BTreeMap<String, (u64, u64)>,
}

impl Layers {
    /// Records progress, and returns the done and total bytes of all known parts, if any part is
    /// known.
    fn record(&mut self, progress: PullProgress) -> Option<(u64, u64)> {
        if let (Some(layer), Some(done), Some(total)) =
            (progress.layer, progress.done, progress.total)
        {
            let part = self.parts.entry(layer).or_default();
            // An engine reports each part twice, for its download and for its extraction, so keep
            // the maximum.
            *part = (part.0.max(done), part.1.max(total));
        }
        self.parts.values().copied().reduce(|all, part| (all.0 + part.0, all.1 + part.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_image_add_up() {
        let mut layers = Layers::default();
        let mut record = |layer: &str, done, total| {
            layers.record(PullProgress {
                layer: Some(layer.into()),
                status: String::new(),
                done,
                total,
            })
        };
        assert_eq!(record("a", None, None), None);
        assert_eq!(record("a", Some(1), Some(10)), Some((1, 10)));
        assert_eq!(record("b", Some(5), Some(5)), Some((6, 15)));
        assert_eq!(record("a", Some(10), Some(10)), Some((15, 15)));
        assert_eq!(record("a", Some(2), Some(10)), Some((15, 15)));
        assert_eq!(record("a", None, None), Some((15, 15)));
    }
}
