//! What programs are told of the proxy, as far as an environment can say it.

use std::net::SocketAddr;

use ringfence_linux::gate::PROXY;

use super::RemoteProxy;

/// Hosts that are never asked for through the proxy: servers in the sandbox itself.
const OWN: &str = "localhost,127.0.0.1,127.0.0.0/8,::1";

/// The variables that lead programs to the proxy at a sandbox's gate.
pub(crate) fn variables() -> Vec<(&'static str, String)> {
    naming(PROXY.into(), OWN)
}

/// The variables that lead programs to a proxy in a container of its own, and not for what is in the same network.
pub(crate) fn remote_variables(proxy: &RemoteProxy) -> Vec<(&'static str, String)> {
    let direct = proxy.subnet.iter().fold(OWN.to_owned(), |direct, subnet| format!("{direct},{subnet}"));
    naming(proxy.address, &direct)
}

/// The variables that name a proxy, in the spellings that programs look for.
fn naming(address: SocketAddr, direct: &str) -> Vec<(&'static str, String)> {
    let proxy = format!("http://{address}");
    let (host, port) = (address.ip(), address.port());
    // Not as a SOCKS proxy, which it is, too: Python's clients refuse one for which they lack a package.
    let told = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let own = ["NO_PROXY", "no_proxy"];
    // These read no such variable, or only in some versions, or only some of them.
    let named = ["CARGO_HTTP_PROXY", "PIP_PROXY", "npm_config_proxy", "npm_config_https_proxy"];
    let yarn = ["YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"];
    let mut variables: Vec<_> = told.into_iter().chain(named).chain(yarn).map(|name| (name, proxy.clone())).collect();
    variables.extend(own.map(|name| (name, direct.to_owned())));
    variables.push(("npm_config_noproxy", direct.to_owned()));
    variables.push(("NODE_USE_ENV_PROXY", "1".to_owned()));
    let java = ["http", "https"].map(|scheme| format!("-D{scheme}.proxyHost={host} -D{scheme}.proxyPort={port}"));
    variables.push(("JAVA_TOOL_OPTIONS", format!("{} -Dhttp.nonProxyHosts=localhost|127.*|[::1]", java.join(" "))));
    variables
}
