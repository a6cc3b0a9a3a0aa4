//! Environment variables that tell programs about the proxy.

use std::net::SocketAddr;

use ringfence_linux::gate::PROXY_ADDRESS;

use super::RemoteProxy;

/// Hosts that are never reached through the proxy: servers in the sandbox itself.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1,127.0.0.0/8,::1";

/// Returns the variables that lead programs to the proxy at a sandbox's gate.
pub(crate) fn variables() -> Vec<(&'static str, String)> {
    proxy_variables(PROXY_ADDRESS.into(), NO_PROXY_HOSTS)
}

/// Returns the variables that lead programs to a proxy in a container of its own, except for hosts
/// in the same network.
pub(crate) fn remote_variables(proxy: &RemoteProxy) -> Vec<(&'static str, String)> {
    let direct = proxy
        .subnet
        .iter()
        .fold(NO_PROXY_HOSTS.to_owned(), |direct, subnet| format!("{direct},{subnet}"));
    proxy_variables(proxy.address, &direct)
}

/// Returns the variables that name a proxy, in the spellings that programs look for.
fn proxy_variables(address: SocketAddr, direct: &str) -> Vec<(&'static str, String)> {
    let proxy = format!("http://{address}");
    let (host, port) = (address.ip(), address.port());
    // The proxy also speaks SOCKS, but it is not named as a SOCKS proxy: Python's clients refuse
    // one if they lack a package for it.
    let standard =
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let own = ["NO_PROXY", "no_proxy"];
    // These programs read none of the variables above, or only in some versions, or only some of
    // them.
    let named = ["CARGO_HTTP_PROXY", "PIP_PROXY", "npm_config_proxy", "npm_config_https_proxy"];
    let yarn = ["YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"];
    let mut variables: Vec<_> =
        standard.into_iter().chain(named).chain(yarn).map(|name| (name, proxy.clone())).collect();
    variables.extend(own.map(|name| (name, direct.to_owned())));
    variables.push(("npm_config_noproxy", direct.to_owned()));
    variables.push(("NODE_USE_ENV_PROXY", "1".to_owned()));
    let java = ["http", "https"]
        .map(|scheme| format!("-D{scheme}.proxyHost={host} -D{scheme}.proxyPort={port}"));
    variables.push((
        "JAVA_TOOL_OPTIONS",
        format!("{} -Dhttp.nonProxyHosts=localhost|127.*|[::1]", java.join(" ")),
    ));
    variables
}
