//! TCP to a server inside, and one HTTP request to it.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::stream;
use libdsec::{Code, Error, PortConnection};
use pyo3::{IntoPyObjectExt, prelude::*, pybacked::PyBackedBytes, types::PyBytes};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    sync::Mutex as AsyncMutex,
};

use crate::{call::Call, feed::Feed, runtime::Home};

/// The most that one `recv` gives.
const CHUNK_BYTES: usize = 64 << 10;

/// Raw bytes both ways.
#[pyclass(frozen)]
pub(crate) struct Connection {
    input: Arc<AsyncMutex<Option<WriteHalf<PortConnection>>>>,
    output: Arc<Feed<Bytes>>,
    /// Came, and was more than was asked for.
    rest: Arc<Mutex<Bytes>>,
    home: Home,
}

pub(crate) fn connection(py: Python<'_>, connection: PortConnection) -> PyResult<Py<PyAny>> {
    let (read, write) = tokio::io::split(connection);
    let output = Feed::new(stream::unfold(Some(read), |read| async move {
        let mut read: ReadHalf<PortConnection> = read?;
        let mut data = bytes::BytesMut::with_capacity(CHUNK_BYTES);
        match read.read_buf(&mut data).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(data.freeze()), Some(read))),
            Err(e) => Some((Err(lost(&e)), None)),
        }
    }));
    let input = Arc::new(AsyncMutex::new(Some(write)));
    let connection = Connection { input, output: output.clone(), rest: Arc::default(), home: Home::here() };
    Ok(Py::new(py, connection)?.into_any())
}

fn lost(e: &std::io::Error) -> Error {
    Error::new(Code::Conflict, format!("the connection to the port is closed: {e}"))
}

impl Connection {
    fn check(&self) -> PyResult<()> {
        self.home.check("connection", "connect again")
    }

    fn rest(&self) -> std::sync::MutexGuard<'_, Bytes> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Connection {
    /// What is left of the last piece, at most `size` bytes; empty where nothing is.
    fn left(&self, py: Python<'_>, size: usize) -> Py<PyBytes> {
        let mut rest = self.rest();
        let many = size.min(rest.len());
        PyBytes::new(py, &rest.split_to(many)).unbind()
    }

    /// The next piece, at most `size` bytes of it; None at the end, False: ask again.
    fn recv(&self, size: usize) -> PyResult<Call> {
        self.check()?;
        let rest = self.rest.clone();
        Ok(self.output.next(move |py, mut data| {
            let now = data.split_to(size.min(data.len()));
            *rest.lock().unwrap_or_else(PoisonError::into_inner) = data;
            Ok(PyBytes::new(py, &now).into_any().unbind())
        }))
    }

    fn send(&self, data: PyBackedBytes) -> PyResult<Call> {
        self.check()?;
        let (input, data) = (self.input.clone(), Bytes::from_owner(data));
        Ok(Call::unit(async move {
            match &mut *input.lock().await {
                Some(input) => input.write_all(&data).await.map_err(|e| lost(&e)),
                None => Err(Error::new(Code::Conflict, "this side of the connection is closed")),
            }
        }))
    }

    /// End-of-file to the server; its answer can still be read.
    fn close_write(&self) -> PyResult<Call> {
        self.check()?;
        let input = self.input.clone();
        Ok(Call::unit(async move {
            if let Some(mut input) = input.lock().await.take() {
                // A server that is gone needs no end-of-file.
                let _ = input.shutdown().await;
            }
            Ok(())
        }))
    }

    fn close(&self) -> PyResult<Call> {
        self.check()?;
        let (input, output) = (self.input.clone(), self.output.clone());
        Ok(Call::unit(async move {
            // The reading half first: a write that is under way then fails, and gives the other half free.
            output.close().await?;
            input.lock().await.take();
            Ok(())
        }))
    }
}

/// `(status, [(name, value)], body)`
pub(crate) fn response(py: Python<'_>, response: http::Response<Bytes>) -> PyResult<Py<PyAny>> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<(String, String)> =
        response.headers().iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    let body = PyBytes::new(py, response.body());
    (response.status().as_u16(), headers, body).into_py_any(py)
}
