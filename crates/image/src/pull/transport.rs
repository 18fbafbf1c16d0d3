//! One GET on a connection of its own: TCP, TLS where the URL says so, HTTP/1.1.
//!
//! Why no pool: a pull makes a few requests, each for many bytes; a connection that is never used twice never breaks
//! because it was kept too long.
//!
//! Invariants: every wait has a deadline; a certificate is always verified; a URL with a user in it is refused.

use std::{error::Error as _, fmt::Write as _, sync::Arc, time::Duration};

use api::{Code, Error};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Uri, header, response};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::failure::Failure;

const CONNECT_DEADLINE: Duration = Duration::from_secs(15);
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// Between two pieces of a body.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A small body as a whole.
const DOCUMENT_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct Transport {
    tls: TlsConnector,
}

/// An answer whose body is still to come.
pub struct Answer {
    pub head: response::Parts,
    body: Incoming,
    /// For messages.
    host: String,
}

impl Transport {
    /// Trusts the system's roots (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others), or Mozilla's where it has none.
    pub fn new() -> Result<Self, Error> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            tracing::info!("pull: the system has no root certificates: Mozilla's are used");
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        Self::trusting(roots)
    }

    pub fn trusting(roots: RootCertStore) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| {
            tracing::error!(%error, "pull: TLS cannot be set up");
            Error::internal("the node cannot speak TLS")
        })?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        Ok(Self { tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Sends it, follows nothing. `url` is absolute.
    pub async fn get(&self, url: &Uri, headers: HeaderMap) -> Result<Answer, Failure> {
        let (host, is_tls) = (authority(url)?, url.scheme_str() == Some("https"));
        let (name, port) = (url.host().unwrap_or_default(), url.port_u16());
        let port = port.unwrap_or(if is_tls { 443 } else { 80 });
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let stream = timeout(CONNECT_DEADLINE, TcpStream::connect((name, port))).await;
        let stream = stream
            .map_err(|_| late(&host, "does not take the connection", CONNECT_DEADLINE))?
            .map_err(|e| Failure::unreachable(format!("`{host}` cannot be reached: {e}")))?;
        // Small requests must not wait for more to send.
        let _ = stream.set_nodelay(true);
        if !is_tls {
            return self.exchange(stream, url, headers, host).await;
        }
        let server = ServerName::try_from(name.to_owned())
            .map_err(|_| Failure::last(Code::InvalidArgument, format!("`{host}`: no name for TLS")))?;
        let stream = timeout(CONNECT_DEADLINE, self.tls.connect(server, stream)).await;
        let stream = stream
            .map_err(|_| late(&host, "does not finish the TLS handshake", CONNECT_DEADLINE))?
            .map_err(|e| tls_failure(&host, &e))?;
        self.exchange(stream, url, headers, host).await
    }

    async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        url: &Uri,
        headers: HeaderMap,
        host: String,
    ) -> Result<Answer, Failure> {
        let lost =
            |e: hyper::Error| Failure::unreachable(format!("`{host}` broke the connection: {}", chain(&e)));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        // Ends with the answer's body.
        tokio::spawn(connection);
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path).body(Empty::<Bytes>::new()).map_err(|_| bad_url(&host))?;
        *request.headers_mut() = headers;
        let value = HeaderValue::from_str(&host).map_err(|_| bad_url(&host))?;
        request.headers_mut().insert(header::HOST, value);
        let agent = concat!("dsec/", env!("CARGO_PKG_VERSION"));
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(agent));
        let answer = timeout(HEAD_DEADLINE, sender.send_request(request)).await;
        let answer = answer.map_err(|_| late(&host, "does not answer", HEAD_DEADLINE))?.map_err(lost)?;
        let (head, body) = answer.into_parts();
        Ok(Answer { head, body, host })
    }
}

impl Answer {
    /// The next piece; None at the end. Errors: it broke off, or stopped.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = timeout(PAUSE_MAX, self.body.frame()).await;
            match frame.map_err(|_| late(&self.host, "stops in the middle of a body", PAUSE_MAX))? {
                None => return Ok(None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    // Trailers are no data.
                    Err(_) => continue,
                },
                Some(Err(e)) => {
                    let message = format!("`{}` broke off in the middle of a body: {}", self.host, chain(&e));
                    return Err(Failure::unreachable(message));
                }
            }
        }
    }

    /// The whole body, at most `bytes_max`.
    pub async fn whole(mut self, bytes_max: u64, what: &str) -> Result<Bytes, Failure> {
        let host = self.host.clone();
        let all = async {
            let mut whole = BytesMut::new();
            while let Some(bytes) = self.next().await? {
                if whole.len() as u64 + bytes.len() as u64 > bytes_max {
                    let message = format!("{what}: larger than {bytes_max} bytes");
                    return Err(Failure::last(Code::InvalidArgument, message));
                }
                whole.extend_from_slice(&bytes);
            }
            Ok(whole.freeze())
        };
        timeout(DOCUMENT_DEADLINE, all).await.map_err(|_| late(&host, "is too slow", DOCUMENT_DEADLINE))?
    }

    pub fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }
}

/// `host` or `host:port`, as the URL has it.
pub fn authority(url: &Uri) -> Result<String, Failure> {
    let authority = url.authority().map(|a| a.as_str()).unwrap_or_default();
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    if !is_http || authority.is_empty() || authority.contains('@') {
        return Err(bad_url(authority));
    }
    Ok(authority.to_owned())
}

/// Whether the host is this machine, by its name or address alone.
pub fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    address || host.eq_ignore_ascii_case("localhost")
}

fn bad_url(host: &str) -> Failure {
    Failure::last(
        Code::InvalidArgument,
        format!("the registry names a URL that is none: `{}`", host.escape_debug()),
    )
}

fn late(host: &str, what: &str, deadline: Duration) -> Failure {
    Failure::unreachable(format!("`{host}` {what} within {} s", deadline.as_secs()))
}

/// A certificate that is not trusted will not be trusted a second later.
fn tls_failure(host: &str, error: &std::io::Error) -> Failure {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(why)) => {
            let message = format!("the certificate of `{host}` is not trusted: {why:?}");
            Failure::last(Code::InvalidArgument, message)
        }
        _ => Failure::unreachable(format!("`{host}`: no TLS connection: {error}")),
    }
}

/// hyper keeps the cause to itself.
fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer},
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Of `localhost`, signed by itself, for a hundred years; the key is no secret.
    const CERTIFICATE: &str = "\
        MIIBkjCCATigAwIBAgIUJImHdefUlEYKpcwXOOzK+beQ0CEwCgYIKoZIzj0EAwIwFDESMBAGA1UEAwwJbG9jYWxob3N0MCAX\
        DTI2MTIwMTAwMjk1MloYDzIxMjYxMTA3MDAyOTUyWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO\
        PQMBBwNCAARtuGs0rCU6znzI5lCCOdGrN1krKYWWMBg7dt22dxnyTOnfmeEEvsg6EwYJ7S3CEkPUGpiq+Zl4bpqGN11KJXI1\
        o2YwZDAdBgNVHQ4EFgQUh60xMUqy34J+TeHNZaYKJAkYsNowHwYDVR0jBBgwFoAUh60xMUqy34J+TeHNZaYKJAkYsNowFAYD\
        VR0RBA0wC4IJbG9jYWxob3N0MAwGA1UdEwEB/wQCMAAwCgYIKoZIzj0EAwIDSAAwRQIgND+8W/OtRv7DBEBObiqa0IViVE0g\
        5n5rdjfpA2/G93ACIQD5jcqPFkKYz63SCHIMvseyVP70TTFiI2hxh8na5CdUhw==";
    const KEY: &str = "\
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUGS0pZ3aZyqmmHCNd6pYdp/Mv2mnK7Dp/lasM8G4jmahRANC\
        AARtuGs0rCU6znzI5lCCOdGrN1krKYWWMBg7dt22dxnyTOnfmeEEvsg6EwYJ7S3CEkPUGpiq+Zl4bpqGN11KJXI1";

    fn certificate() -> CertificateDer<'static> {
        STANDARD.decode(CERTIFICATE).unwrap().into()
    }

    /// Answers whoever comes with `hello`. Gives its port.
    async fn serve() -> u16 {
        let key = PrivateKeyDer::try_from(STANDARD.decode(KEY).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certificate()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut head = [0; 1024];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
                let _ = stream.shutdown().await;
            }
        });
        port
    }

    #[tokio::test]
    async fn a_certificate_is_trusted_by_its_root_and_its_name() {
        let port = serve().await;
        let mut roots = RootCertStore::empty();
        roots.add(certificate()).unwrap();
        let trusting = Transport::trusting(roots).unwrap();
        let get = async |transport: &Transport, host: &str| {
            let url: Uri = format!("https://{host}:{port}/").parse().unwrap();
            transport.get(&url, HeaderMap::new()).await?.whole(100, "the answer").await
        };
        assert_eq!(get(&trusting, "localhost").await.unwrap(), "hello");
        let error = get(&trusting, "127.0.0.1").await.unwrap_err();
        assert_eq!(error.error.code, Code::InvalidArgument, "another name: {error:?}");
        let error = get(&Transport::new().unwrap(), "localhost").await.unwrap_err();
        assert_eq!(error.error.code, Code::InvalidArgument, "no root: {error:?}");
        assert!(error.error.message.contains("not trusted") && error.wait(1).is_none(), "{error:?}");
    }

    #[tokio::test]
    async fn an_answer_is_bounded() {
        let port = serve().await;
        let mut roots = RootCertStore::empty();
        roots.add(certificate()).unwrap();
        let url: Uri = format!("https://localhost:{port}/").parse().unwrap();
        let answer = Transport::trusting(roots).unwrap().get(&url, HeaderMap::new()).await.unwrap();
        assert_eq!(answer.whole(4, "the answer").await.unwrap_err().error.code, Code::InvalidArgument);
    }
}
