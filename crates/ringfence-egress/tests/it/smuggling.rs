//! Tests of requests that two parsers would read differently.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{DnsServer, ProxyBuilder, TestServer, answered, head, in_time, refused};

/// Sends `lines` as one request, and checks whether the proxy refuses it. `HOST` in `lines` stands
/// for the authority of the host.
async fn check(lines: &str, is_refused: bool) {
    let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
    let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
    let request = lines.replace("HOST", &format!("origin.test:{}", host.port()));
    let answer = proxy.ask(&request).await;
    if is_refused {
        refused(&answer, 400, "malformed");
        let [denial] = &proxy.denials()[..] else { panic!("one denial") };
        assert_eq!(denial.reason.code(), "malformed", "{request:?}");
        assert!(denial.target.len() < 64 && !denial.target.contains("secret"), "{denial:?}");
        assert_eq!(host.heard(), "", "{request:?}");
    } else {
        answered(&answer);
    }
}

#[tokio::test]
async fn an_ambiguous_request_reaches_no_host() {
    in_time(async {
        for lines in [
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: \
             chunked\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\
             Content-Length: 4\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: \
             1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: \
             2\r\n\r\nab",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1, 1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: +1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0x1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: \
             99999999999999999999\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n\
             0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked, \
             identity\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n\
             0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n\
             0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\u{b}chunked\r\n\r\n\
             0\r\n\r\n",
            "POST http://HOST/ HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n\
             0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: a\r\n folded: b\r\n\r\n",
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\n\tfolded: b\r\n\r\n",
            "GET http://HOST/ HTTP/1.1\nHost: HOST\n\n",
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\nX: a\r\n\r\n",
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: a\rY: b\r\n\r\n",
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: a\0b\r\n\r\n",
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nHost: other.test\r\n\r\n",
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX a\r\n\r\n",
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\n: a\r\n\r\n",
            "GET  http://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "GET http://HOST/ x HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "GET\thttp://HOST/\tHTTP/1.1\r\nHost: HOST\r\n\r\n",
            "GET http://HOST/\r\nHost: HOST\r\n\r\n",
            "GET http://HOST/ HTTP/2.0\r\nHost: HOST\r\n\r\n",
            "GET http://user:secret@HOST/secret?secret HTTP/1.2\r\nHost: HOST\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "CONNECT HOST HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\n\r\nhello",
            "CONNECT HOST HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            check(lines, true).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_same_requests_without_ambiguity_pass() {
    in_time(async {
        for lines in [
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: a\tb \r\nConnection: close\r\n\r\n",
            "\r\nGET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
            "GET http://HOST/ HTTP/1.0\r\nHost: HOST\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nConnection: \
             close\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: Chunked\r\n\r\n\
             0\r\n\r\n",
        ] {
            check(lines, false).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_after_a_body_is_checked_like_the_first() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let bodied = |body: &str| {
            let length = body.len();
            format!(
                "PUT http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nContent-Length: \
                     {length}\r\n\r\n{body}"
            )
        };
        // The proxy does not parse a body that looks like a faulty head.
        let request =
            bodied("GET / HTTP/1.1\n\n\r\n\r\n") + &bodied("") + "GET / HTTP/1.1\nHost: x\n\n";
        let answer = proxy.ask(request).await;
        assert!(answer.contains("HTTP/1.1 400 "), "{answer}");
        assert_eq!(proxy.codes(), ["malformed"]);

        // The proxy reads no request after a chunked body, because only the parser of the chunks
        // knows where they end.
        let chunked = format!(
            "POST http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nTransfer-Encoding: \
             chunked\r\n\r\n0\r\n\r\n\
             GET http://{authority}/second HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        );
        let answer = proxy.ask(chunked).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(!host.heard().contains("/second"), "{}", host.heard());
    })
    .await;
}

/// Starts a host that reads no body, and closes a connection when a request asks for that.
async fn ignoring_bodies() -> TestServer {
    TestServer::new(|mut stream, heard| async move {
        let mut request = Vec::new();
        while let Ok(byte) = stream.read_u8().await {
            request.push(byte);
            if !request.ends_with(b"\r\n\r\n") {
                continue;
            }
            let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
            heard.lock().unwrap().append(&mut request);
            let answered =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await;
            if answered.is_err() || text.contains("connection: close") {
                let _ = stream.shutdown().await; // the other side may be gone
                // Unread bytes would reset the connection.
                let _ = stream.read_to_end(&mut Vec::new()).await;
                return;
            }
        }
    })
    .await
}

/// Sends requests on one connection, each after the answer to the request before.
async fn converse(client: &mut TcpStream, requests: &[String]) {
    for request in requests {
        client.write_all(request.as_bytes()).await.unwrap();
        assert!(head(client).await.starts_with("HTTP/1.1 200 "));
        client.read_exact(&mut [0; 5]).await.unwrap();
    }
}

#[tokio::test]
async fn a_body_that_the_host_ignores_is_not_read_as_a_request() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, ignoring_bodies().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let hidden = "GET /hidden HTTP/1.1\r\nHost: front.test\r\n\r\n";
        let length = hidden.len();
        let requests = |method: &str, headers: &str, origin: &str| {
            let head = format!("{method} {origin}/one HTTP/1.1\r\nHost: {authority}\r\n{headers}");
            let second = format!("GET {origin}/two HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            [format!("{head}Content-Length: {length}\r\n\r\n{hidden}"), second]
        };
        // Without the proxy, the host takes the body for a request.
        let mut direct = TcpStream::connect(host.address).await.unwrap();
        converse(&mut direct, &requests("GET", "", "")).await;
        while !host.heard().contains("GET /two ") {
            tokio::task::yield_now().await;
        }
        assert!(
            host.heard().contains("GET /hidden HTTP/1.1\r\nHost: front.test"),
            "{}",
            host.heard()
        );

        let upgrade = "Connection: upgrade\r\nUpgrade: words\r\n";
        for (method, headers) in [("GET", ""), ("HEADER", ""), ("POST", ""), ("GET", upgrade)] {
            for is_tunnel in [false, true] {
                host.heard.lock().unwrap().clear();
                let before = host.connections();
                let origin = if is_tunnel { String::new() } else { format!("http://{authority}") };
                let mut client =
                    if is_tunnel { proxy.tunnel(&authority).await } else { proxy.client().await };
                let [first, second] = requests(method, headers, &origin);
                // The client keeps its own connection. Requests without a body share a connection
                // to the host.
                converse(
                    &mut client,
                    &[first.clone(), second.clone(), second.clone(), first, second],
                )
                .await;
                assert_eq!(host.connections() - before, 3, "{method} {headers}");
                assert_eq!(
                    host.heard().matches("GET /two ").count(),
                    3,
                    "{method}: {}",
                    host.heard()
                );
                assert!(
                    !host.heard().contains("front.test"),
                    "{method} {headers}: {}",
                    host.heard()
                );
            }
        }
        // After a chunked body, the client's connection ends.
        host.heard.lock().unwrap().clear();
        let chunked = format!(
            "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nTransfer-Encoding: \
             chunked\r\n\r\n\
             {length:x}\r\n{hidden}\r\n0\r\n\r\n"
        );
        answered(&proxy.ask(chunked).await);
        assert!(!host.heard().contains("front.test"), "{}", host.heard());
        assert_eq!(proxy.codes(), [""; 0]);
    })
    .await;
}
