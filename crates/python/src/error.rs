//! An error of libdsec as a Python exception: the classes are in `dsec._errors`, one for each code.

use libdsec::Error;
use pyo3::{prelude::*, sync::PyOnceLock};

static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Of a code: `dsec._errors.make(code, message, request_id, retry_after)`.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    match exception(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    }
}

pub(crate) fn exception(py: Python<'_>, error: Error) -> PyResult<Bound<'_, PyAny>> {
    let make = MAKE.get_or_try_init(py, || {
        let module = py.import("dsec._errors")?;
        PyResult::Ok(module.getattr("make")?.unbind())
    })?;
    let request_id = error.request_id.as_ref().map(|id| id.as_str().to_owned());
    let retry_after = error.retry_after_ms.map(|ms| ms as f64 / 1000.0);
    make.bind(py).call1((error.code.as_str(), error.message, request_id, retry_after))
}
