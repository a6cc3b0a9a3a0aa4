//! Tests of the observing mode.

use ringfence_egress::ProxyMode;

use crate::fixture::{DnsServer, LOOPBACK, ProxyBuilder, TestServer, answered, in_time, refused};

#[tokio::test]
async fn observe_mode_reports_unlisted_targets_and_still_judges_addresses() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let authority = format!("origin.test:{}", host.port());
        // No rule names the host, so the enforcing mode denies it.
        let rules = [host.address.to_string()];
        refused(
            &ProxyBuilder::allowing(&rules).start(&dns).await.get(&authority).await,
            403,
            "unlisted",
        );

        let proxy = ProxyBuilder { mode: ProxyMode::Observe, ..ProxyBuilder::allowing(&rules) }
            .start(&dns)
            .await;
        answered(&proxy.get(&authority).await);
        answered(&proxy.get(&host.address.to_string()).await);
        let allowed_connections = proxy.allowed_connections();
        assert_eq!(
            (allowed_connections[0].target.as_str(), allowed_connections[0].listed),
            (authority.as_str(), false)
        );
        assert_eq!(allowed_connections[0].address, Some(LOOPBACK));
        assert!(allowed_connections[1].listed);
        refused(&proxy.get("10.0.0.1").await, 403, "internal");

        let proxy =
            ProxyBuilder { mode: ProxyMode::Observe, ..ProxyBuilder::default() }.start(&dns).await;
        refused(&proxy.get(&authority).await, 403, "internal");
        let stage = ProxyBuilder {
            mode: ProxyMode::Observe,
            deny: vec![authority.clone()],
            ..ProxyBuilder::allowing(&rules)
        };
        refused(&stage.start(&dns).await.get(&authority).await, 403, "listed");
    })
    .await;
}

#[tokio::test]
async fn events_survive_serialisation() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let stage = ProxyBuilder {
            mode: ProxyMode::Observe,
            ..ProxyBuilder::allowing([host.address.to_string()])
        };
        let proxy = stage.start(&dns).await;
        proxy.get(&format!("origin.test:{}", host.port())).await;
        proxy.get("10.0.0.1").await;
        let (denials, allowed_connections) = (proxy.denials(), proxy.allowed_connections());
        let again = |text: String| serde_json::from_str(&text).unwrap();
        assert_eq!(denials[0], again(serde_json::to_string(&denials[0]).unwrap()));
        let text = serde_json::to_string(&allowed_connections[0]).unwrap();
        assert_eq!(allowed_connections[0], serde_json::from_str(&text).unwrap());
    })
    .await;
}
