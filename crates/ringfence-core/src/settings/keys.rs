//! Declaration of every setting.
//!
//! A setting is a field of [`Config`], with its type and its description, and an entry of the table
//! [`KEYS`]. The entry names three rules: how the value of a layer is merged onto the layers below
//! (a method of [`LayerMerge`]), what a project may do with the value (of [`NarrowingCheck`]), and
//! how the value is explained (of [`Explanation`]). The entry also names the flag, the variable and
//! the paths in the value, if there are any.
//!
//! Layers are merged by this table alone, so that a field without an entry has no effect; a test
//! names such a field. A setting cannot be declared without a rule for projects.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;

use super::explain::{ExplainedRows, Explanation};
use super::field::Field;
use super::merge::LayerMerge;
use super::narrow::{NarrowingCheck, NarrowingResult};
use super::{BlockImports, Config, Credential, Language, PythonModule, SecretOrigin, Toleration};
use crate::audit::RecordedRuns;
use crate::policy::{Environment, HostRule, Limits, NetworkMode, PathGlob, Size, Span, Workspace};
use crate::{BackendChoice, Clause};

/// One setting, and the ways to set it.
#[derive(Debug, Clone, Copy)]
pub struct SettingKey {
    /// Name of the key in files, with its table, such as `limits.memory`.
    pub name: &'static str,
    /// Flag that sets the key, if there is one.
    pub flag: Option<&'static str>,
    /// Environment variable that sets the key, if there is one.
    pub variable: Option<SettingVariable>,
    /// Paths in the value, if there can be any.
    pub(super) paths: Option<SettingPaths>,
    /// Merges the value of a layer onto the layers below.
    pub(super) merge: fn(&mut LayerMerge<'_>),
    /// Refuses a value of the project's layer that would widen the layers below, and removes one
    /// that must not be merged.
    pub(super) narrow: fn(&mut NarrowingCheck<'_>) -> NarrowingResult,
    /// Returns the effective value as text, or several values, each with its key.
    pub(super) explain: fn(&Explanation<'_>) -> ExplainedRows,
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

/// Paths in the value of a setting. A leading `~` in such a path means the home directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct SettingPaths {
    pub(super) form: PathForm,
    /// Returns the paths in a layer's value of the setting.
    pub(super) list: fn(&mut Config) -> Vec<&mut PathBuf>,
}

/// Form of the paths that a setting accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathForm {
    Any,
    Absolute,
}

/// Error of parsing the value of a variable.
pub(super) type ValueError = Box<dyn Error + Send + Sync>;

impl SettingKey {
    /// Returns the setting to which `key` belongs: `env.set.NAME` belongs to `env.set`.
    pub(super) fn containing(key: &str) -> Option<&'static SettingKey> {
        KEYS.iter().find(|known| key.starts_with(known.name))
    }
}

/// Makes the table [`KEYS`] from its entries.
///
/// The path of the field is the name of the key. `paths` has a function that finds the paths in a
/// value, and their [`PathForm`]. `variable` has the name of the variable, the values that it
/// accepts, and a function that parses such a value.
macro_rules! settings {
    ($(
        $table:ident $(. $key:ident)?: $type:ty {
            merge: $merge:ident, project: $project:ident, explain: $explain:ident,
            $(paths: $paths:ident, $form:ident,)?
            $(flag: $flag:literal,)?
            $(variable: $variable:literal, $value:literal, $parse:ident,)?
        }
    )*) => {
        /// Every setting, in the order of the documentation.
        pub const KEYS: &[SettingKey] = &[$( {
            const FIELD: Field<$type> = Field {
                key: concat!(stringify!($table) $(, ".", stringify!($key))?),
                get: |config| &config.$table $(.$key)?,
                get_mut: |config| &mut config.$table $(.$key)?,
            };
            // An optional part is the first element of its array, and `None` if the entry has no
            // such part.
            SettingKey {
                name: FIELD.key,
                flag: [$(Some($flag),)? None][0],
                variable: [$(Some(SettingVariable {
                    name: $variable,
                    value: $value,
                    apply: |config, text| {
                        *(FIELD.get_mut)(config) = $parse(text)?;
                        Ok(config.network.check()?)
                    },
                }),)? None][0],
                paths: [$(Some(SettingPaths {
                    form: PathForm::$form,
                    list: |config| $paths((FIELD.get_mut)(config)),
                }),)? None][0],
                merge: |merge| merge.$merge(&FIELD),
                narrow: |check| check.$project(&FIELD),
                explain: |explanation| explanation.$explain(&FIELD),
            }
        } ),*];
    };
}

settings! {
    backend: Option<BackendChoice> {
        merge: replace, project: may_choose_native, explain: selection,
        flag: "--backend",
        variable: "RINGFENCE_BACKEND", "a backend, or auto", one,
    }
    // Patterns of `hide` and `protect` are relative to the workspace, so that another workspace
    // would make them match other files. A destination covers what the sandbox has at that path,
    // which may be programs of the system.
    filesystem.workspace: Option<Workspace> {
        merge: replace, project: may_repeat, explain: value,
        paths: workspace_source, Any,
        flag: "--workspace",
        variable: "RINGFENCE_WORKSPACE", "SOURCE or SOURCE:DESTINATION", one,
    }
    filesystem.read: Option<Vec<PathBuf>> {
        merge: unite, project: may_name_beneath, explain: list,
        paths: each_listed, Any,
        flag: "--read",
        variable: "RINGFENCE_READ", "paths with colons between", paths,
    }
    filesystem.write: Option<Vec<PathBuf>> {
        merge: unite, project: may_name_beneath, explain: list,
        paths: each_listed, Any,
        flag: "--write",
        variable: "RINGFENCE_WRITE", "paths with colons between", paths,
    }
    filesystem.hide: Option<Vec<PathGlob>> {
        merge: unite, project: may_add, explain: list,
        flag: "--hide",
        variable: "RINGFENCE_HIDE", "patterns with commas between", items,
    }
    filesystem.protect: Option<Vec<PathGlob>> {
        merge: unite, project: may_add, explain: list,
        flag: "--protect",
        variable: "RINGFENCE_PROTECT", "patterns with commas between", items,
    }
    network.mode: Option<NetworkMode> {
        merge: replace_network, project: may_narrow_network, explain: value,
        flag: "--net",
        variable: "RINGFENCE_NET", "closed, allow or open", one,
    }
    network.allow: Option<Vec<HostRule>> {
        merge: replace_network, project: may_narrow_network, explain: list,
        flag: "--allow",
        variable: "RINGFENCE_ALLOW", "hosts with commas between", items,
    }
    network.deny: Option<Vec<HostRule>> {
        merge: unite, project: may_add, explain: list,
        flag: "--deny",
        variable: "RINGFENCE_DENY", "hosts with commas between", items,
    }
    // This switch lets the sandbox reach more of ringfence's code on the host.
    network.transparent: Option<bool> {
        merge: replace, project: may_turn_off, explain: value,
        flag: "--transparent",
        variable: "RINGFENCE_TRANSPARENT", "true or false", one,
    }
    // With this switch, unlisted hosts are recorded and not refused.
    network.observe: Option<bool> {
        merge: replace, project: may_turn_off, explain: value,
        flag: "--observe",
        variable: "RINGFENCE_OBSERVE", "true or false", one,
    }
    limits.time: Option<Span> {
        merge: replace, project: may_lower, explain: value,
        flag: "--time",
        variable: "RINGFENCE_TIME", "a duration such as 30s", one,
    }
    limits.memory: Option<Size> {
        merge: replace, project: may_lower, explain: value,
        flag: "--memory",
        variable: "RINGFENCE_MEMORY", "a size such as 512M", one,
    }
    limits.cpus: Option<f64> {
        merge: replace, project: may_lower, explain: value,
        flag: "--cpus",
        variable: "RINGFENCE_CPUS", "a number such as 1.5", cpus,
    }
    limits.processes: Option<u32> {
        merge: replace, project: may_lower, explain: value,
        flag: "--processes",
        variable: "RINGFENCE_PROCESSES", "a number such as 256", processes,
    }
    limits.output: Option<Size> {
        merge: replace, project: may_lower, explain: value,
        flag: "--output",
        variable: "RINGFENCE_OUTPUT", "a size such as 10M", one,
    }
    limits.tmp: Option<Size> {
        merge: replace, project: may_lower, explain: value,
        flag: "--tmp",
        variable: "RINGFENCE_TMP", "a size such as 1G", one,
    }
    limits.disk: Option<Size> {
        merge: replace, project: may_lower, explain: value,
        flag: "--disk",
        variable: "RINGFENCE_DISK", "a size such as 1G", one,
    }
    env.pass: Option<Vec<String>> {
        merge: unite, project: may_repeat_items, explain: list,
        flag: "--env",
        variable: "RINGFENCE_ENV_PASS", "names with commas between", variable_names,
    }
    // A variable can steer programs (`LD_PRELOAD`, `PATH`). With the backends `local` and `outer`
    // those programs run on the host itself.
    env.set: BTreeMap<String, String> {
        merge: insert, project: may_repeat_named, explain: secrets,
        flag: "--env",
    }
    require: BTreeSet<Clause> {
        merge: extend, project: may_add, explain: list,
        flag: "--require",
        variable: "RINGFENCE_REQUIRE", "promises with commas between", clauses,
    }
    allow_weaker: BTreeSet<Clause> {
        merge: extend, project: may_repeat_items, explain: list,
        flag: "--allow-weaker",
        variable: "RINGFENCE_ALLOW_WEAKER", "promises with commas between", clauses,
    }
    workspace_root: Option<PathBuf> {
        merge: replace, project: may_not_set, explain: value,
        paths: each, Absolute,
        variable: "RINGFENCE_WORKSPACE_ROOT", "a directory", one,
    }
    allow_workspace: Vec<PathBuf> {
        merge: extend, project: may_not_add, explain: list,
        paths: each, Absolute,
    }
    // The user is responsible for the code in an image, and the image is everything that a
    // container has besides its workspace.
    container.image: Option<String> {
        merge: replace, project: may_not_set, explain: value,
        flag: "--image",
        variable: "RINGFENCE_IMAGE", "an image, for podman and docker", one,
    }
    // A project decides neither which cluster runs its code nor which images it runs there.
    kubernetes.context: Option<String> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_KUBERNETES_CONTEXT", "a context of the kubeconfig", one,
    }
    kubernetes.namespace: Option<String> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_KUBERNETES_NAMESPACE", "a namespace", one,
    }
    kubernetes.image: Option<String> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_KUBERNETES_IMAGE", "an image", one,
    }
    kubernetes.guest_image: Option<String> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_KUBERNETES_GUEST_IMAGE", "an image that contains the guest", one,
    }
    kubernetes.image_pull_secrets: Vec<String> {
        merge: extend, project: may_not_add, explain: list,
    }
    kubernetes.runtime_class: Option<String> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_KUBERNETES_RUNTIME_CLASS", "a RuntimeClass", one,
    }
    kubernetes.service_account: Option<String> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_KUBERNETES_SERVICE_ACCOUNT", "a ServiceAccount", one,
    }
    kubernetes.node_selector: BTreeMap<String, String> {
        merge: insert, project: may_repeat_named, explain: table,
    }
    kubernetes.tolerations: Vec<Toleration> {
        merge: extend, project: may_not_add, explain: list,
    }
    kubernetes.labels: BTreeMap<String, String> {
        merge: insert, project: may_repeat_named, explain: table,
    }
    credentials: Vec<Credential> {
        merge: extend, project: may_not_add, explain: list,
        paths: secret_files, Absolute,
    }
    audit.store: Option<RecordedRuns> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_AUDIT", "on_error, always or never", one,
    }
    audit.dir: Option<PathBuf> {
        merge: replace, project: may_not_set, explain: value,
        paths: each, Any,
        variable: "RINGFENCE_AUDIT_DIR", "a directory", one,
    }
    code.block_imports: Option<BlockImports> {
        merge: replace, project: may_raise, explain: value,
        flag: "--block-imports",
        variable: "RINGFENCE_BLOCK_IMPORTS", "off, warn or block", one,
    }
    code.imports: Option<Vec<PythonModule>> {
        merge: unite, project: may_add, explain: list,
        variable: "RINGFENCE_IMPORTS", "modules with commas between", items,
    }
    code.store_code: Option<RecordedRuns> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_STORE_CODE", "on_error, always or never", one,
    }
    // A waiting interpreter takes the caller's memory, and a preloaded module runs even if no code
    // is run.
    code.warm: Option<usize> {
        merge: replace, project: may_not_set, explain: value,
        variable: "RINGFENCE_WARM", "a number of interpreters", one,
    }
    code.preload: Option<Vec<PythonModule>> {
        merge: replace, project: may_not_list, explain: preload,
        variable: "RINGFENCE_PRELOAD", "modules with commas between", items,
    }
    code.languages: BTreeMap<String, Language> {
        merge: insert, project: may_add_languages, explain: table,
    }
}

fn one<T: FromStr<Err: Into<ValueError>>>(text: &str) -> Result<Option<T>, ValueError> {
    Ok(Some(text.parse().map_err(Into::into)?))
}

fn cpus(text: &str) -> Result<Option<f64>, ValueError> {
    Ok(Some(Limits::check_cpus(text.parse()?)?))
}

fn processes(text: &str) -> Result<Option<u32>, ValueError> {
    Ok(Some(Limits::check_processes(text.parse()?)?))
}

fn items<T: FromStr<Err: Into<ValueError>>>(text: &str) -> Result<Option<Vec<T>>, ValueError> {
    Ok(Some(split(text, ',')?))
}

fn paths(text: &str) -> Result<Option<Vec<PathBuf>>, ValueError> {
    Ok(Some(split(text, ':')?))
}

fn variable_names(text: &str) -> Result<Option<Vec<String>>, ValueError> {
    let names: Vec<String> = split(text, ',')?;
    names.iter().try_for_each(|name| Environment::check_name(name))?;
    Ok(Some(names))
}

fn clauses(text: &str) -> Result<BTreeSet<Clause>, ValueError> {
    Ok(split(text, ',')?.into_iter().collect())
}

/// Parses the parts of a list. Empty parts are left out, so that an empty text is an empty list.
fn split<T: FromStr<Err: Into<ValueError>>>(
    text: &str,
    between: char,
) -> Result<Vec<T>, ValueError> {
    let parts = text.split(between).map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(Into::into)).collect()
}

/// Returns the path of a single path, or the paths of a list.
fn each<'a, P>(paths: &'a mut P) -> Vec<&'a mut PathBuf>
where
    &'a mut P: IntoIterator<Item = &'a mut PathBuf>,
{
    paths.into_iter().collect()
}

fn each_listed(paths: &mut Option<Vec<PathBuf>>) -> Vec<&mut PathBuf> {
    paths.iter_mut().flatten().collect()
}

fn workspace_source(workspace: &mut Option<Workspace>) -> Vec<&mut PathBuf> {
    workspace.iter_mut().map(|workspace| &mut workspace.source).collect()
}

fn secret_files(credentials: &mut [Credential]) -> Vec<&mut PathBuf> {
    let origins = credentials.iter_mut().map(|credential| &mut credential.origin);
    let files = origins.filter_map(|origin| match origin {
        SecretOrigin::File(path) => Some(path),
        SecretOrigin::Command(_) | SecretOrigin::Variable(_) => None,
    });
    files.collect()
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
