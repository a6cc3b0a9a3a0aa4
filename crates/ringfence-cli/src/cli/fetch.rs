//! Fetching the image of a container, with a bar on a terminal.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use ringfence::images::{self, PullProgress};
use ringfence::{Pull, Sandbox, Settings, Spec, StartError};
use ringfence_core::settings::Selection;
use ringfence_core::terminal::clean_line;

use super::flags::ENGINES;
use crate::report::Failure;

/// Fetches what the sandbox of `spec` is to be made from, if that is an image and it is not there already.
pub(super) async fn fetch(settings: &Settings, spec: &mut Spec) -> Result<(), Failure> {
    let Selection::Only(backend) = settings.selection else { return Ok(()) };
    let is_up = match &spec.name {
        Some(name) => Sandbox::attach(&settings.host, name).await.is_ok(),
        None => false,
    };
    if !ENGINES.contains(&backend) || spec.container.pull == Some(Pull::Never) || is_up {
        return Ok(());
    }
    let mut layers = Layers::default();
    let bar = ProgressBar::no_length().with_style(style("{msg}"));
    let mut progress = |progress: PullProgress| {
        bar.set_message(clean_line(&progress.status).into_owned());
        // Until an engine tells of the first part's size, a bar would be full at nothing.
        if let Some((done, total)) = layers.heard(progress) {
            bar.set_style(style("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}"));
            bar.set_length(total);
            bar.set_position(done);
        }
    };
    let provided = images::provide(&settings.host, backend, &spec.container, &mut progress).await;
    bar.finish_and_clear();
    provided.map_err(StartError::from)?;
    // It was fetched just now: not a second time.
    spec.container.pull = Some(Pull::Missing);
    Ok(())
}

fn style(progress: &str) -> ProgressStyle {
    ProgressStyle::with_template(&format!("fetching the image  {progress}")).expect("the template is fixed text")
}

/// How far each part of an image is.
#[derive(Debug, Default)]
struct Layers {
    parts: BTreeMap<String, (u64, u64)>,
}

impl Layers {
    /// How many bytes of all known parts are done, and how many they have, if any part is known.
    fn heard(&mut self, progress: PullProgress) -> Option<(u64, u64)> {
        if let (Some(layer), Some(done), Some(total)) = (progress.layer, progress.done, progress.total) {
            let part = self.parts.entry(layer).or_default();
            // Each part is told of twice: as it comes, and as it is unpacked.
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
        let mut heard = |layer: &str, done, total| {
            layers.heard(PullProgress { layer: Some(layer.into()), status: String::new(), done, total })
        };
        assert_eq!(heard("a", None, None), None);
        assert_eq!(heard("a", Some(1), Some(10)), Some((1, 10)));
        assert_eq!(heard("b", Some(5), Some(5)), Some((6, 15)));
        assert_eq!(heard("a", Some(10), Some(10)), Some((15, 15)));
        assert_eq!(heard("a", Some(2), Some(10)), Some((15, 15)));
        assert_eq!(heard("a", None, None), Some((15, 15)));
    }
}
