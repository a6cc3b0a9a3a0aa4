//! Loads a proxy and says how it did: an origin on loopback, and clients that reach it through the
//! proxy, or directly.
//!
//! ```text
//! bench_proxy                        prints the origin's address, then reads lines
//! stream PROXY|direct STREAMS BYTES  answers megabytes a second, all streams together
//! request PROXY|direct COUNT         answers the p50 and p99 of one request, in microseconds
//! hold PROXY|direct COUNT            holds tunnels until the next line; answers how many stand
//! ```

use std::io::BufRead;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

type BenchError = Box<dyn std::error::Error + Send + Sync>;

/// Number of bytes that are written and read at once.
const PIECE: usize = 256 * 1024;
/// Byte that every answer consists of.
const FILL: u8 = b'x';
/// Answer to one request.
const ANSWER: &[u8] = &[FILL; 5];

#[tokio::main]
async fn main() -> Result<(), BenchError> {
    let origin = TcpListener::bind("127.0.0.1:0").await?;
    let address = origin.local_addr()?;
    tokio::spawn(serve(origin));
    say(&address.to_string());
    let mut held = Vec::new();
    for line in std::io::stdin().lock().lines() {
        held.clear();
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["stream", proxy, streams, bytes] => {
                stream(way(proxy)?, address, streams.parse()?, bytes.parse()?).await?
            }
            ["request", proxy, count] => request(way(proxy)?, address, count.parse()?).await?,
            ["hold", proxy, count] => {
                for _ in 0..count.parse::<usize>()? {
                    held.push(tunnel(way(proxy)?, address).await?);
                }
                held.len().to_string()
            }
            _ => return Err(format!("cannot read `{line}`").into()),
        };
        say(&answer);
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "whoever drives it reads it there")]
fn say(answer: &str) {
    println!("{answer}");
}

fn way(word: &str) -> Result<Option<SocketAddr>, BenchError> {
    Ok(if word == "direct" { None } else { Some(word.parse()?) })
}

/// Answers `GET /N` with N bytes, and every other request with a few.
async fn serve(origin: TcpListener) {
    while let Ok((client, _)) = origin.accept().await {
        tokio::spawn(async move {
            let _ = client.set_nodelay(true); // only slower without
            let mut client = BufReader::new(client);
            while let Ok(Some(path)) = head(&mut client).await {
                let length = path.trim_start_matches('/').parse().unwrap_or(ANSWER.len() as u64);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                let piece = vec![FILL; PIECE.min(length as usize)];
                let mut left = length;
                let answer = async {
                    client.write_all(head.as_bytes()).await?;
                    while left > 0 {
                        let next = left.min(PIECE as u64);
                        client.write_all(&piece[..next as usize]).await?;
                        left -= next;
                    }
                    client.flush().await
                };
                if answer.await.is_err() {
                    return; // the client has gone
                }
            }
        });
    }
}

/// Reads the head of a message; its second word, which is a request's path and an answer's status.
async fn head(stream: &mut BufReader<TcpStream>) -> Result<Option<String>, BenchError> {
    let (mut first, mut line) = (String::new(), String::new());
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    loop {
        line.clear();
        if stream.read_line(&mut line).await? <= 2 {
            break;
        }
    }
    Ok(Some(first.split_whitespace().nth(1).unwrap_or_default().to_owned()))
}

/// A tunnel to the origin.
async fn tunnel(
    proxy: Option<SocketAddr>,
    origin: SocketAddr,
) -> Result<BufReader<TcpStream>, BenchError> {
    let stream = TcpStream::connect(proxy.unwrap_or(origin)).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::with_capacity(PIECE, stream);
    if proxy.is_some() {
        stream
            .write_all(format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n").as_bytes())
            .await?;
        let status = head(&mut stream).await?.unwrap_or_default();
        if status != "200" {
            return Err(format!("the proxy answered {status}").into());
        }
    }
    Ok(stream)
}

async fn stream(
    proxy: Option<SocketAddr>,
    origin: SocketAddr,
    streams: usize,
    bytes: u64,
) -> Result<String, BenchError> {
    let mut tunnels = Vec::new();
    for _ in 0..streams {
        tunnels.push(tunnel(proxy, origin).await?);
    }
    let start = Instant::now();
    let mut all = JoinSet::new();
    for mut tunnel in tunnels {
        all.spawn(async move {
            tunnel
                .write_all(format!("GET /{bytes} HTTP/1.1\r\nHost: {origin}\r\n\r\n").as_bytes())
                .await?;
            head(&mut tunnel).await?;
            let mut left = bytes - tunnel.buffer().len() as u64;
            let mut piece = vec![0; PIECE];
            let mut tunnel = tunnel.into_inner();
            while left > 0 {
                match tunnel.read(&mut piece).await? {
                    0 => return Err("the stream ended early".into()),
                    read => left -= read as u64,
                }
            }
            Ok::<_, BenchError>(())
        });
    }
    while let Some(done) = all.join_next().await {
        done??;
    }
    Ok(format!("{:.1}", (bytes * streams as u64) as f64 / 1e6 / start.elapsed().as_secs_f64()))
}

async fn request(
    proxy: Option<SocketAddr>,
    origin: SocketAddr,
    count: usize,
) -> Result<String, BenchError> {
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let mut stream = BufReader::new(TcpStream::connect(proxy.unwrap_or(origin)).await?);
        let target = if proxy.is_some() { format!("http://{origin}/") } else { "/".to_owned() };
        let words = format!("GET {target} HTTP/1.1\r\nHost: {origin}\r\nConnection: close\r\n\r\n");
        stream.write_all(words.as_bytes()).await?;
        let status = head(&mut stream).await?.unwrap_or_default();
        let mut answer = [0; ANSWER.len()];
        stream.read_exact(&mut answer).await?;
        if status != "200" || answer != ANSWER {
            return Err(
                format!("a request was answered {status}, {}", answer.escape_ascii()).into()
            );
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
    Ok(format!("{} {}", at(50), at(99)))
}
