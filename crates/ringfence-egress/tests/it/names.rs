//! Tests of the lookup of names, and of the rules for their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::fixture::{
    DnsServer, LOOPBACK, ProxyBuilder, TestServer, answered, explanation, in_time, refused,
    serve_hello,
};

const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

#[tokio::test]
async fn a_name_with_an_internal_address_needs_a_rule_for_the_address() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let authority = format!("origin.test:{}", host.port());
        let proxy = ProxyBuilder::allowing([&authority]).start(&dns).await;
        let answer = proxy.get(&authority).await;
        refused(&answer, 403, "internal");
        assert_eq!(explanation(&answer)["allow"], format!("allow = [\"{}\"]", host.address));
        assert_eq!(host.connections(), 0);
        answered(
            &ProxyBuilder::allowing(host.rules("origin.test"))
                .start(&dns)
                .await
                .get(&authority)
                .await,
        );
    })
    .await;
}

#[tokio::test]
async fn a_name_that_changes_its_address_is_judged_by_the_address_that_is_used() {
    in_time(async {
        // DNS rebinding: the first answer is an address that a rule names, and later answers are
        // not.
        let dns =
            DnsServer::new(|_, before| if before == 0 { vec![LOOPBACK] } else { vec![OTHER] })
                .await;
        let host = TestServer::web().await;
        let inside = TestServer::at((OTHER, host.port()).into(), serve_hello).await;
        let authority = format!("origin.test:{}", host.port());
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        answered(&proxy.get(&authority).await);
        // The proxy asks once for one connection, so there is no second answer to use.
        assert_eq!(dns.asked().len(), 1);
        assert_eq!((host.connections(), inside.connections()), (1, 0));

        refused(&proxy.get(&authority).await, 403, "internal");
        assert_eq!((host.connections(), inside.connections()), (1, 0));
        // As a control, the proxy uses the second address if a rule names it.
        let rules = [authority.clone(), inside.address.to_string()];
        answered(&ProxyBuilder::allowing(rules).start(&dns).await.get(&authority).await);
        assert_eq!(inside.connections(), 1);
    })
    .await;
}

#[tokio::test]
async fn only_the_allowed_addresses_of_a_name_are_used() {
    in_time(async {
        let dns =
            DnsServer::new(|_, _| vec![OTHER, IpAddr::V6(Ipv6Addr::LOCALHOST), LOOPBACK]).await;
        let host = TestServer::web().await;
        let inside = TestServer::at((OTHER, host.port()).into(), serve_hello).await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        answered(&proxy.get(&format!("origin.test:{}", host.port())).await);
        assert_eq!((host.connections(), inside.connections()), (1, 0));
        assert_eq!(proxy.denials(), []);
        assert_eq!(proxy.allowed_connections()[0].address, Some(LOOPBACK));
    })
    .await;
}

#[tokio::test]
async fn a_denied_address_is_denied_under_every_name() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let authority = format!("origin.test:{}", host.port());
        let stage = ProxyBuilder {
            deny: vec![host.address.to_string()],
            ..ProxyBuilder::allowing(host.rules("origin.test"))
        };
        let proxy = stage.start(&dns).await;
        let answer = proxy.get(&authority).await;
        refused(&answer, 403, "listed");
        assert!(explanation(&answer).get("allow").is_none(), "{answer}");
        refused(&proxy.get(&host.address.to_string()).await, 403, "listed");
        let stage = ProxyBuilder {
            deny: vec!["*.origin.test".to_owned()],
            ..ProxyBuilder::allowing(host.rules("origin.test"))
        };
        answered(&stage.start(&dns).await.get(&authority).await);
    })
    .await;
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_does_not_answer() {
    in_time(async {
        let dead = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
        let dns = DnsServer::new(move |_, _| vec![dead, LOOPBACK]).await;
        let host = TestServer::web().await;
        let rules =
            [host.rules("origin.test").to_vec(), vec![format!("{dead}:{}", host.port())]].concat();
        let proxy = ProxyBuilder::allowing(rules).start(&dns).await;
        answered(&proxy.get(&format!("origin.test:{}", host.port())).await);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_name_is_not_reported_as_a_denial() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let proxy = ProxyBuilder::allowing(["unknown.invalid"]).start(&dns).await;
        let answer = proxy.get("unknown.invalid").await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(explanation(&answer)["reason"], "unresolved");
        assert_eq!(proxy.denials(), []);
    })
    .await;
}

#[tokio::test]
async fn names_are_looked_up_in_the_form_that_was_judged() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let port = host.port();
        let proxy = ProxyBuilder::allowing(host.rules("xn--bcher-kva.test")).start(&dns).await;
        let request =
            format!("GET http://XN--BCHER-kva.Test.:{port}/ HTTP/1.1\r\nConnection: close\r\n\r\n");
        answered(&proxy.ask(request).await);
        assert_eq!(dns.asked(), ["xn--bcher-kva.test"]);
        assert!(
            host.heard().contains(&format!("xn--bcher-kva.test:{port}\r\n")),
            "{}",
            host.heard()
        );
    })
    .await;
}
