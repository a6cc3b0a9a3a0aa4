//! Tests of plain HTTP requests.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use ringfence_egress::{DenialReason, RequestKind};

use crate::fixture::{
    DnsServer, ProxyBuilder, TestServer, answered, explanation, head, in_time, refused,
};

#[tokio::test]
async fn an_unlisted_host_is_denied_with_the_rule_that_would_allow_it() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let authority = format!("origin.test:{}", host.port());
        answered(
            &ProxyBuilder::allowing(host.rules("origin.test"))
                .start(&dns)
                .await
                .get(&authority)
                .await,
        );
        assert_eq!(host.connections(), 1);

        let proxy = ProxyBuilder::allowing(["other.test"]).start(&dns).await;
        let answer = proxy.get(&authority).await;
        refused(&answer, 403, "unlisted");
        let explanation = explanation(&answer);
        assert_eq!(explanation["error"], "denied");
        assert_eq!(explanation["target"], authority);
        assert_eq!(explanation["allow"], format!("allow = [\"{authority}\"]"));
        let [denial] = &proxy.denials()[..] else { panic!("one denial") };
        assert_eq!((denial.target.as_str(), denial.via), (authority.as_str(), RequestKind::Http));
        assert_eq!(denial.reason, DenialReason::Unlisted);
        assert_eq!(denial.policy, Some(format!("allow = [\"{authority}\"]")));
        assert_eq!(host.connections(), 1);
        // The proxy does not look up a name that is not allowed.
        assert_eq!(dns.asked(), ["origin.test"]);
    })
    .await;
}

#[tokio::test]
async fn each_request_of_a_kept_connection_is_judged_on_its_own() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let port = host.port();
        let mut client = proxy.client().await;
        for (name, status) in [("origin", 200), ("origin", 200), ("denied", 403), ("origin", 200)] {
            let request = format!(
                "GET http://{name}.test:{port}/ HTTP/1.1\r\nHost: {name}.test:{port}\r\n\r\n"
            );
            client.write_all(request.as_bytes()).await.unwrap();
            let head = head(&mut client).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            let length =
                head.to_ascii_lowercase().split("content-length: ").nth(1).unwrap().to_owned();
            let length = length.split("\r\n").next().unwrap().parse().unwrap();
            client.read_exact(&mut vec![0; length]).await.unwrap();
        }
        // The proxy keeps its connection to the host, too.
        assert_eq!(host.connections(), 1);
        assert_eq!(proxy.codes(), ["unlisted"]);
    })
    .await;
}

#[tokio::test]
async fn the_host_header_agrees_with_the_target_or_the_request_is_denied() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let port = host.port();
        let ask = |host: String| {
            format!("GET http://origin.test:{port}/ HTTP/1.1\r\n{host}Connection: close\r\n\r\n")
        };
        for same in ["origin.test", "ORIGIN.test", "origin.test."] {
            answered(&proxy.ask(ask(format!("Host: {same}:{port}\r\n"))).await);
        }
        answered(&proxy.ask(ask(String::new())).await);
        for other in
            [format!("other.test:{port}"), "origin.test:81".to_owned(), "origin.test".to_owned()]
        {
            refused(&proxy.ask(ask(format!("Host: {other}\r\n"))).await, 403, "other_name");
        }
        // The host gets its name always in the same spelling.
        let heard = host.heard().replace("\r\nHost: ", "\r\nhost: ");
        assert_eq!(
            heard.matches(&format!("\r\nhost: origin.test:{port}\r\n")).count(),
            4,
            "{heard}"
        );
    })
    .await;
}

#[tokio::test]
async fn hop_by_hop_headers_do_not_reach_the_host() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let answer = proxy
            .ask(format!(
                "GET http://{authority}/path?query HTTP/1.1\r\nHost: {authority}\r\nX-Kept: 1\r\n\
                 X-Named: 2\r\n\
                 Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\n\
                 Proxy-Other: 3\r\n\
                 Keep-Alive: timeout=5\r\nConnection: close, X-Named\r\n\r\n"
            ))
            .await;
        answered(&answer);
        // Header names keep the case in which the client wrote them.
        assert_eq!(
            host.heard(),
            format!(
                "GET /path?query HTTP/1.1\r\nHost: {authority}\r\n\
                                          X-Kept: 1\r\n\r\n"
            )
        );
    })
    .await;
}

#[tokio::test]
async fn request_forms_that_no_proxy_forwards_are_refused() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        for line in [
            format!("GET https://{authority}/ HTTP/1.1"),
            format!("GET ftp://{authority}/ HTTP/1.1"),
            format!("GET http://user:password@{authority}/ HTTP/1.1"),
            format!("GET http://{authority}%00.other.test/ HTTP/1.1"),
            "GET / HTTP/1.1".to_owned(),
            "OPTIONS * HTTP/1.1".to_owned(),
            "CONNECT origin.test HTTP/1.1".to_owned(),
            format!("CONNECT user@{authority} HTTP/1.1"),
        ] {
            let answer = proxy
                .ask(format!("{line}\r\nHost: {authority}\r\nConnection: close\r\n\r\n"))
                .await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{line}: {answer}");
        }
        answered(&proxy.get(&authority).await);
        assert_eq!(host.connections(), 1);
        assert!(proxy.denials().iter().all(|denial| !denial.target.contains("password")));
    })
    .await;
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, heard| async move {
            let mut request = Vec::new();
            while !request.ends_with(b"x-sum: 1\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            heard.lock().unwrap().extend_from_slice(&request);
            let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n\
                          3\r\nabc\r\n0\r\nX-End: 2\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let answer = proxy
            .ask(format!(
                "POST http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nTransfer-Encoding: \
                 chunked\r\n\
                 TE: trailers\r\nTrailer: X-Sum\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n"
            ))
            .await;
        assert!(host.heard().ends_with("4\r\nbody\r\n0\r\nx-sum: 1\r\n\r\n"), "{}", host.heard());
        assert!(answer.ends_with("3\r\nabc\r\n0\r\nx-end: 2\r\n\r\n"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_expects_100_continue_is_answered_before_its_body() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, _| async move {
            let head = head(&mut stream).await;
            assert!(head.to_ascii_lowercase().contains("expect: 100-continue"), "{head}");
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
            let mut body = [0; 4];
            stream.read_exact(&mut body).await.unwrap();
            assert_eq!(&body, b"body");
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let port = host.port();
        let request = |name: &str| {
            format!(
                "POST http://{name}:{port}/ HTTP/1.1\r\nHost: {name}:{port}\r\nContent-Length: \
                 4\r\n\
                 Expect: 100-continue\r\nConnection: close\r\n\r\n"
            )
        };
        let mut client = proxy.client().await;
        client.write_all(request("origin.test").as_bytes()).await.unwrap();
        assert_eq!(head(&mut client).await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(b"body").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answered(&answer);

        refused(&proxy.ask(request("other.test")).await, 403, "unlisted");
    })
    .await;
}

#[tokio::test]
async fn a_web_socket_passes_and_a_change_to_http_2_is_not_asked_for() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, heard| async move {
            let head = head(&mut stream).await;
            heard.lock().unwrap().extend_from_slice(head.as_bytes());
            if !head.contains("websocket") {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                    .await
                    .unwrap();
                return;
            }
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: \
                           websocket\r\n\r\nfirst";
            stream.write_all(answer).await.unwrap();
            let mut said = [0; 5];
            stream.read_exact(&mut said).await.unwrap();
            stream.write_all(&said).await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let request = |protocol: &str| {
            format!(
                "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade, \
                 HTTP2-Settings\r\n\
                 HTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: {protocol}\r\n\r\n"
            )
        };
        let mut client = proxy.client().await;
        client.write_all(request("websocket").as_bytes()).await.unwrap();
        let answer = head(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        client.write_all(b"again").await.unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "firstagain");

        let mut client = proxy.client().await;
        client.write_all(request("h2c").as_bytes()).await.unwrap();
        assert!(head(&mut client).await.starts_with("HTTP/1.1 200 "));
        assert!(
            !host.heard().contains("h2c") && !host.heard().contains("HTTP2-Settings"),
            "{}",
            host.heard()
        );
    })
    .await;
}

#[tokio::test]
async fn a_client_that_closed_its_sending_side_still_gets_its_answer() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let mut client = proxy.client().await;
        let request = format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answered(&answer);
    })
    .await;
}

#[tokio::test]
async fn a_kept_connection_that_the_host_closed_is_replaced() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, _| async move {
            head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let mut client = proxy.client().await;
        for _ in 0..5 {
            let request = format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let head = head(&mut client).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            client.read_exact(&mut [0; 5]).await.unwrap();
        }
        assert_eq!(host.connections(), 5);
    })
    .await;
}

#[tokio::test]
async fn an_unreachable_host_or_one_without_http_is_not_reported_as_a_denial() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let garbler = TestServer::new(|mut stream, _| async move {
            stream.write_all(b"220 smtp ready\r\n").await.unwrap();
        })
        .await;
        let gone = TestServer::web().await;
        let rules = [garbler.rules("garbler.test"), gone.rules("gone.test")].concat();
        let gone_port = gone.port();
        drop(gone);
        let proxy = ProxyBuilder::allowing(rules).start(&dns).await;
        let answer = proxy.get(&format!("garbler.test:{}", garbler.port())).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(explanation(&answer)["reason"], "garbled");
        let answer = proxy.get(&format!("gone.test:{gone_port}")).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(explanation(&answer)["reason"], "unreachable");
        assert_eq!(explanation(&answer)["error"], "failed");
        assert!(!answer.contains("x-ringfence-denied"), "{answer}");
        assert_eq!(proxy.denials(), []);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_sends_a_long_body_still_reads_its_denial() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let proxy = ProxyBuilder::default().start(&dns).await;
        let mut client = proxy.client().await;
        let body = vec![b'x'; 4_000_000];
        let request =
            format!("POST http://origin.test/ HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
        client.write_all(request.as_bytes()).await.unwrap();
        client.write_all(&body).await.unwrap();
        let answer = head(&mut client).await;
        assert!(answer.contains("x-ringfence-denied: unlisted\r\n"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn an_answer_with_two_lengths_arrives_with_one() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, _| async move {
            head(&mut stream).await;
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: \
                          chunked\r\n\r\n\
                          5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let answer = proxy.get(&format!("origin.test:{}", host.port())).await;
        assert!(answer.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), "{answer}");
        assert!(!answer.to_ascii_lowercase().contains("content-length"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn a_head_request_is_answered_with_the_length_of_the_body() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, _| async move {
            head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n").await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let answer = proxy
            .ask(format!("HEAD http://{authority}/ HTTP/1.1\r\nConnection: close\r\n\r\n"))
            .await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n"), "{answer}");
    })
    .await;
}
