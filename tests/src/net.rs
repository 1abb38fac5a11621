//! A network between bridges and a service that a test can break.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use tokio::runtime::Runtime;

use crate::{
    editor::Editor,
    harness::{Service, poll_until},
    proxy::Proxy,
};

/// A proxy before a service, and what it runs on.
pub struct Net {
    /// What breaks it.
    pub proxy: Proxy,
    _runtime: Runtime,
}

impl Net {
    /// One that works until told otherwise.
    pub fn before(service: &Service) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let port = service.endpoint().rsplit(':').next().unwrap().parse().unwrap();
        let proxy = runtime.block_on(Proxy::to(port));
        Self { proxy, _runtime: runtime }
    }

    /// A bridge that goes through the proxy, with a session.
    pub fn session(&self, service: &Service) -> (Editor, String) {
        let mut editor = self.connect(service);
        editor.initialize();
        let session = editor.new_session(&service.work());
        (editor, session)
    }

    /// A bridge that goes through the proxy.
    pub fn connect(&self, service: &Service) -> Editor {
        service.connect(&["--endpoint", &format!("127.0.0.1:{}", self.proxy.port())])
    }

    /// Waits until so many connections were let through.
    pub fn wait_connections(&self, count: usize) {
        let back = poll_until(Duration::from_secs(30), || self.proxy.connections() >= count);
        assert!(back, "only {} connections", self.proxy.connections());
    }
}
