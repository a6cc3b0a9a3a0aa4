//! A service that refuses to start on a host where it could not isolate commands.
//!
//! The service resolves its settings from the files and the environment, and checks that their
//! policy can be enforced. Only then does it bind a port. Each connection sends one line of shell
//! and gets the result object of its run.
//!
//! ```console
//! $ cargo run -p ringfence --example fail_fast &
//! listening on 127.0.0.1:43210, behind native
//! $ echo 'id -u; ls ~' | nc -q1 127.0.0.1 43210
//! $ SANDBOX_METHOD=docker cargo run -p ringfence --example fail_fast
//! refusing to start: the preflight failed: backend `docker` does not work here: …
//! ```
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a program, and speaks to whoever started it"
)]

use std::process::ExitCode;
use std::time::Duration;

use ringfence::{Command, Engine, Policy, Settings, chain};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

fn main() -> ExitCode {
    // This call must come first, because the program is its own launcher and must not have started
    // a thread before.
    ringfence::launcher::serve_if_asked();
    let engine = match start() {
        Ok(engine) => engine,
        Err((message, hints)) => {
            eprintln!("refusing to start: {message}");
            hints.iter().for_each(|hint| eprintln!("hint: {hint}"));
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map(|runtime| runtime.block_on(serve(engine))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) | Err(error) => {
            eprintln!("cannot serve: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Creates the engine before a port is bound, so that the service fails here if isolation is
/// impossible.
fn start() -> Result<Engine, (String, Vec<String>)> {
    let settings = Settings::from_environment()
        .map_err(|error| (chain(&error), error.hint().into_iter().collect::<Vec<_>>()))?;
    Engine::new(settings).map_err(|error| (chain(&error), error.hints()))
}

async fn serve(engine: Engine) -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let backend =
        engine.preflight().map_or_else(|error| chain(&error), |plan| plan.backend.to_string());
    println!("listening on {}, behind {backend}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let engine = engine.clone();
        tokio::spawn(async move {
            if let Err(error) = answer(&engine, stream).await {
                eprintln!("a connection failed: {error}");
            }
        });
    }
}

async fn answer(engine: &Engine, stream: TcpStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let policy: Policy = engine.settings().policy.clone().time(Duration::from_secs(30));
    let answer = match engine.run(&policy, &Command::shell(line)).await {
        Ok(result) => serde_json::to_string(&result)?,
        Err(error) => {
            serde_json::json!({ "error": chain(&error), "hints": error.hints() }).to_string()
        }
    };
    stream.write_all(answer.as_bytes()).await?;
    stream.write_all(b"\n").await
}
