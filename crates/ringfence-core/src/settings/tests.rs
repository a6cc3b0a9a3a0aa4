mod credentials;
mod declared;
mod explained;
mod layers;
mod narrowing;

use super::*;

/// Layers of settings for one test.
#[derive(Default)]
struct TestLayers {
    files: Vec<LayerText>,
    variables: Vec<(&'static str, &'static str)>,
    flags: Config,
}

impl TestLayers {
    fn file(mut self, origin: FileOrigin, text: &str) -> Self {
        let path = match origin {
            FileOrigin::System => "/etc/ringfence/config.toml",
            FileOrigin::User => "/home/ada/.config/ringfence/config.toml",
            FileOrigin::Project => "ringfence.toml",
            FileOrigin::Given => "policy.toml",
        };
        self.files.push(LayerText { origin, path: path.into(), text: text.to_owned() });
        self
    }

    fn system(self, text: &str) -> Self {
        self.file(FileOrigin::System, text)
    }

    fn user(self, text: &str) -> Self {
        self.file(FileOrigin::User, text)
    }

    fn project(self, text: &str) -> Self {
        self.file(FileOrigin::Project, text)
    }

    fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    fn flags(mut self, policy: Policy) -> Self {
        self.flags = policy.into();
        self
    }

    fn load(self) -> Result<Settings, SettingsError> {
        Settings::load(SettingsInputs {
            files: &self.files,
            variables: self.variables.into_iter().map(|(name, value)| (name.into(), value.into())),
            flags: self.flags,
            home: Some(Path::new("/home/ada")),
            directory: Path::new("/home/ada/app"),
        })
    }
}

#[track_caller]
fn refuse(given: TestLayers, message: &str) -> SettingsError {
    let error = given.load().expect_err("must be refused");
    assert_eq!(error.to_string(), message);
    error
}

#[track_caller]
fn check_source(settings: &Settings, key: &str, source: &str) {
    let sources: Vec<_> = settings.sources.for_key(key).iter().map(ToString::to_string).collect();
    assert_eq!(sources.join(" + "), source, "{key}");
}

fn given() -> TestLayers {
    TestLayers::default()
}
