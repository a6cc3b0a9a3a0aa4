//! Checks that any project file on top of any user file narrows the settings or is refused, without
//! a panic.
#![no_main]

use std::ffi::OsString;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use ringfence_core::settings::{Config, FileOrigin, LayerText, Settings, SettingsInputs};

fuzz_target!(|texts: (&str, &str)| {
    let file = |origin, path: &str, text: &str| LayerText {
        origin,
        path: path.into(),
        text: text.to_owned(),
    };
    let files = [
        file(FileOrigin::User, "/home/user/.config/ringfence/config.toml", texts.0),
        file(FileOrigin::Project, "/work/ringfence.toml", texts.1),
    ];
    let variables: [(OsString, OsString); 0] = [];
    let inputs = SettingsInputs {
        files: &files,
        variables,
        flags: Config::default(),
        home: Some(Path::new("/home/user")),
        directory: Path::new("/work"),
    };
    match Settings::load(inputs) {
        Ok(settings) => drop(settings.explain()),
        Err(error) => drop((error.to_string(), error.hint())),
    }
});
