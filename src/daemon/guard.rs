//! A fault of ours in one hand is that hand's failure: whoever waits for its answer gets one, and the others go on.

use futures::FutureExt as _;
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

/// Does `work`; a panic in it comes back as an error in words. The panic's own message has said where.
pub(super) async fn guarded<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| {
        let why = format!("a fault in overnight itself: {}", message(&*panic));
        tracing::error!("{}", crate::domain::safe::line(&why));
        why
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        assert_eq!(guarded(async { 3 }).await, Ok(3));
        let broken = guarded(async { [0u8; 1].get(std::hint::black_box(1)).copied().expect("out of range") }).await;
        assert_eq!(broken, Err("a fault in overnight itself: out of range".to_owned()));
        let formatted = guarded(async { panic!("{} of it", std::hint::black_box("half")) }).await;
        assert_eq!(formatted, Err::<(), _>("a fault in overnight itself: half of it".to_owned()));
    }
}
