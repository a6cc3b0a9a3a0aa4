//! Requests that two readers would read differently.

use crate::stage::{Dns, Host, Stage, answered, in_time, refused};

/// Sends the lines of a head, each as it stands, and what follows them.
async fn check(lines: &str, is_refused: bool) {
    let (dns, host) = (Dns::loopback().await, Host::web().await);
    let proxy = Stage::allowing(host.rules("origin.test")).start(&dns).await;
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
async fn a_request_that_can_be_read_in_two_ways_reaches_nobody() {
    in_time(async {
        for lines in [
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1, 1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: +1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0x1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 99999999999999999999\r\n\r\na",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\u{b}chunked\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
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
async fn the_same_requests_in_one_reading_pass() {
    in_time(async {
        for lines in [
            "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: a\tb \r\nConnection: close\r\n\r\n",
            "\r\nGET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
            "GET http://HOST/ HTTP/1.0\r\nHost: HOST\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
        ] {
            check(lines, false).await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_follows_a_body_is_looked_at_like_the_first_head() {
    in_time(async {
        let (dns, host) = (Dns::loopback().await, Host::web().await);
        let proxy = Stage::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let bodied = |body: &str| {
            let length = body.len();
            format!("PUT http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nContent-Length: {length}\r\n\r\n{body}")
        };
        // A body that looks like a faulty head is a body.
        let request = bodied("GET / HTTP/1.1\n\n\r\n\r\n") + &bodied("") + "GET / HTTP/1.1\nHost: x\n\n";
        let answer = proxy.ask(request).await;
        assert!(answer.contains("HTTP/1.1 400 "), "{answer}");
        assert_eq!(proxy.codes(), ["malformed"]);

        // After chunks, nothing is read at all: where they end is for the reader of the chunks to say.
        let chunked = format!(
            "POST http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
             GET http://{authority}/second HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        );
        let answer = proxy.ask(chunked).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(!host.heard().contains("/second"), "{}", host.heard());
    })
    .await;
}
