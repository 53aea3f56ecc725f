//! Every case on every store.

use leasehold_conformance::fixture::Fixture;
use leasehold_conformance::{cases, for_each_case, stores};

macro_rules! case {
    ($($module:ident :: $case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = Fixture::new(fresh(), None);
                cases::$module::$case(&fixture).await;
            }
        )*
    };
}

/// A module of tests for each store that costs nothing to start. The others run all cases on
/// one server: see the tests of `leasehold-faults`.
mod memory {
    use super::*;
    use stores::memory as fresh;
    for_each_case!(case);
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;
    use stores::sqlite as fresh;
    for_each_case!(case);
}
