//! Table of all keys, with the environment variable and the flag for each key.

use std::error::Error;
use std::str::FromStr;

use crate::policy::{Environment, Limits};
use crate::settings::Config;

/// One setting, and the ways to set it.
#[derive(Debug, Clone, Copy)]
pub struct SettingKey {
    /// Name of the key in files, with its table, such as `limits.memory`.
    pub name: &'static str,
    /// Flag that sets the key, if there is one.
    pub flag: Option<&'static str>,
    /// Environment variable that sets the key, if there is one.
    pub variable: Option<SettingVariable>,
}

/// An environment variable that sets a key.
#[derive(Debug, Clone, Copy)]
pub struct SettingVariable {
    /// Name of the variable, such as `RINGFENCE_MEMORY`.
    pub name: &'static str,
    /// Description of the values that the variable accepts, for hints and documents.
    pub value: &'static str,
    /// Parses the value of the variable and stores the result in a layer.
    pub(super) apply: fn(&mut Config, &str) -> Result<(), ValueError>,
}

/// Error of parsing the value of a variable.
pub(super) type ValueError = Box<dyn Error + Send + Sync>;

/// Every key, in the order of the documentation.
pub const KEYS: [SettingKey; 34] = [
    key("backend", "--backend", "RINGFENCE_BACKEND", "a backend, or auto", |config, text| {
        set(&mut config.backend, text)
    }),
    key(
        "filesystem.workspace",
        "--workspace",
        "RINGFENCE_WORKSPACE",
        "SOURCE or SOURCE:DESTINATION",
        |config, text| set(&mut config.filesystem.workspace, text),
    ),
    key(
        "filesystem.read",
        "--read",
        "RINGFENCE_READ",
        "paths with colons between",
        |config, text| set_list(&mut config.filesystem.read, text, ':'),
    ),
    key(
        "filesystem.write",
        "--write",
        "RINGFENCE_WRITE",
        "paths with colons between",
        |config, text| set_list(&mut config.filesystem.write, text, ':'),
    ),
    key(
        "filesystem.hide",
        "--hide",
        "RINGFENCE_HIDE",
        "patterns with commas between",
        |config, text| set_list(&mut config.filesystem.hide, text, ','),
    ),
    key(
        "filesystem.protect",
        "--protect",
        "RINGFENCE_PROTECT",
        "patterns with commas between",
        |config, text| set_list(&mut config.filesystem.protect, text, ','),
    ),
    key("network.mode", "--net", "RINGFENCE_NET", "closed, allow or open", |config, text| {
        set(&mut config.network.mode, text)?;
        Ok(config.network.check()?)
    }),
    key(
        "network.allow",
        "--allow",
        "RINGFENCE_ALLOW",
        "hosts with commas between",
        |config, text| {
            set_list(&mut config.network.allow, text, ',')?;
            Ok(config.network.check()?)
        },
    ),
    key("network.deny", "--deny", "RINGFENCE_DENY", "hosts with commas between", |config, text| {
        set_list(&mut config.network.deny, text, ',')?;
        Ok(config.network.check()?)
    }),
    key(
        "network.transparent",
        "--transparent",
        "RINGFENCE_TRANSPARENT",
        "true or false",
        |config, text| {
            set(&mut config.network.transparent, text)?;
            Ok(config.network.check()?)
        },
    ),
    key("network.observe", "--observe", "RINGFENCE_OBSERVE", "true or false", |config, text| {
        set(&mut config.network.observe, text)?;
        Ok(config.network.check()?)
    }),
    key("limits.time", "--time", "RINGFENCE_TIME", "a duration such as 30s", |config, text| {
        set(&mut config.limits.time, text)
    }),
    key("limits.memory", "--memory", "RINGFENCE_MEMORY", "a size such as 512M", |config, text| {
        set(&mut config.limits.memory, text)
    }),
    key("limits.cpus", "--cpus", "RINGFENCE_CPUS", "a number such as 1.5", |config, text| {
        config.limits.cpus = Some(Limits::check_cpus(text.parse()?)?);
        Ok(())
    }),
    key(
        "limits.processes",
        "--processes",
        "RINGFENCE_PROCESSES",
        "a number such as 256",
        |config, text| {
            config.limits.processes = Some(Limits::check_processes(text.parse()?)?);
            Ok(())
        },
    ),
    key("limits.output", "--output", "RINGFENCE_OUTPUT", "a size such as 10M", |config, text| {
        set(&mut config.limits.output, text)
    }),
    key("limits.tmp", "--tmp", "RINGFENCE_TMP", "a size such as 1G", |config, text| {
        set(&mut config.limits.tmp, text)
    }),
    key("limits.disk", "--disk", "RINGFENCE_DISK", "a size such as 1G", |config, text| {
        set(&mut config.limits.disk, text)
    }),
    key("env.pass", "--env", "RINGFENCE_ENV_PASS", "names with commas between", |config, text| {
        let names: Vec<String> = list(text, ',')?;
        names.iter().try_for_each(|name| Environment::check_name(name))?;
        config.env.pass = Some(names);
        Ok(())
    }),
    SettingKey { name: "env.set", flag: Some("--env"), variable: None },
    key(
        "require",
        "--require",
        "RINGFENCE_REQUIRE",
        "promises with commas between",
        |config, text| {
            config.require = list(text, ',')?.into_iter().collect();
            Ok(())
        },
    ),
    key(
        "allow_weaker",
        "--allow-weaker",
        "RINGFENCE_ALLOW_WEAKER",
        "promises with commas between",
        |config, text| {
            config.allow_weaker = list(text, ',')?.into_iter().collect();
            Ok(())
        },
    ),
    SettingKey {
        name: "workspace_root",
        flag: None,
        variable: variable("RINGFENCE_WORKSPACE_ROOT", "a directory", |config, text| {
            set(&mut config.workspace_root, text)
        }),
    },
    SettingKey { name: "allow_workspace", flag: None, variable: None },
    key(
        "container.image",
        "--image",
        "RINGFENCE_IMAGE",
        "an image, for podman and docker",
        |config, text| set(&mut config.container.image, text),
    ),
    SettingKey { name: "credentials", flag: None, variable: None },
    SettingKey {
        name: "audit.store",
        flag: None,
        variable: variable("RINGFENCE_AUDIT", "on_error, always or never", |config, text| {
            set(&mut config.audit.store, text)
        }),
    },
    SettingKey {
        name: "audit.dir",
        flag: None,
        variable: variable("RINGFENCE_AUDIT_DIR", "a directory", |config, text| {
            set(&mut config.audit.dir, text)
        }),
    },
    key(
        "code.block_imports",
        "--block-imports",
        "RINGFENCE_BLOCK_IMPORTS",
        "off, warn or block",
        |config, text| set(&mut config.code.block_imports, text),
    ),
    SettingKey {
        name: "code.imports",
        flag: None,
        variable: variable("RINGFENCE_IMPORTS", "modules with commas between", |config, text| {
            set_list(&mut config.code.imports, text, ',')
        }),
    },
    SettingKey {
        name: "code.store_code",
        flag: None,
        variable: variable("RINGFENCE_STORE_CODE", "on_error, always or never", |config, text| {
            set(&mut config.code.store_code, text)
        }),
    },
    SettingKey {
        name: "code.warm",
        flag: None,
        variable: variable("RINGFENCE_WARM", "a number of interpreters", |config, text| {
            set(&mut config.code.warm, text)
        }),
    },
    SettingKey {
        name: "code.preload",
        flag: None,
        variable: variable("RINGFENCE_PRELOAD", "modules with commas between", |config, text| {
            set_list(&mut config.code.preload, text, ',')
        }),
    },
    SettingKey { name: "code.languages", flag: None, variable: None },
];

const fn key(
    name: &'static str,
    flag: &'static str,
    variable_name: &'static str,
    value: &'static str,
    apply: fn(&mut Config, &str) -> Result<(), ValueError>,
) -> SettingKey {
    SettingKey { name, flag: Some(flag), variable: variable(variable_name, value, apply) }
}

const fn variable(
    name: &'static str,
    value: &'static str,
    apply: fn(&mut Config, &str) -> Result<(), ValueError>,
) -> Option<SettingVariable> {
    Some(SettingVariable { name, value, apply })
}

fn set<T: FromStr<Err: Into<ValueError>>>(
    into: &mut Option<T>,
    text: &str,
) -> Result<(), ValueError> {
    *into = Some(text.parse().map_err(Into::into)?);
    Ok(())
}

fn set_list<T: FromStr<Err: Into<ValueError>>>(
    into: &mut Option<Vec<T>>,
    text: &str,
    between: char,
) -> Result<(), ValueError> {
    *into = Some(list(text, between)?);
    Ok(())
}

/// Parses the parts of a list. Empty parts are left out, so that an empty text is an empty list.
fn list<T: FromStr<Err: Into<ValueError>>>(
    text: &str,
    between: char,
) -> Result<Vec<T>, ValueError> {
    let parts = text.split(between).map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(Into::into)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Network;

    #[test]
    fn no_key_or_variable_is_defined_twice() {
        for (index, key) in KEYS.iter().enumerate() {
            for other in &KEYS[index + 1..] {
                assert_ne!(key.name, other.name);
                let names = [key, other].map(|key| key.variable.map(|variable| variable.name));
                assert!(names[0].is_none() || names[0] != names[1]);
            }
        }
    }

    #[test]
    fn the_variables_of_the_network_work_in_any_order() {
        let network = |said: &[(&str, &str)]| {
            let mut config = Config::default();
            for (name, value) in said {
                let mut variables = KEYS.iter().filter_map(|key| key.variable);
                let variable = variables.find(|variable| variable.name == *name).unwrap();
                (variable.apply)(&mut config, value)?;
            }
            Ok::<_, ValueError>(config.network.network())
        };
        let (allow, open, hosts) =
            (("RINGFENCE_NET", "allow"), ("RINGFENCE_NET", "open"), ("RINGFENCE_ALLOW", "a.org"));
        let allowed = Some(Network::only(["a.org".parse().unwrap()]));
        assert_eq!(network(&[hosts]).unwrap(), allowed);
        assert_eq!(network(&[hosts, allow]).unwrap(), allowed);
        assert_eq!(network(&[allow, hosts]).unwrap(), allowed);
        for other in [
            hosts,
            ("RINGFENCE_DENY", "a.org"),
            ("RINGFENCE_TRANSPARENT", "true"),
            ("RINGFENCE_OBSERVE", "true"),
        ] {
            assert!(network(&[open, other]).is_err());
            assert!(network(&[other, open]).is_err());
            assert!(network(&[other, ("RINGFENCE_NET", "closed")]).is_err());
        }
    }
}
