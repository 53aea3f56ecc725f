//! `leasehold schema`: what has to be set up by hand before a store can be used.

use leasehold::StoreKind;
use leasehold::backend::postgres::SCHEMA;

use crate::args::Schema;
use crate::config::Config;
use crate::exit::{Failure, USAGE, tell};
use crate::screen;
use crate::store::Store;

/// Prints the schema, for a store that has one.
pub(crate) fn schema(args: Schema, config: &Config) -> Result<u8, Failure> {
    let scheme = match args.kind {
        Some(kind) => kind,
        None => Store::resolve(args.on, config)?.scheme().to_owned(),
    };
    let Some(kind) = StoreKind::of_scheme(&scheme) else {
        let message = format!("this build knows no store {scheme:?}");
        return Err(Failure::new(USAGE, message));
    };
    // Not to stdout, which may be another program's input.
    tell(match kind {
        StoreKind::Postgres => return screen::print(SCHEMA).map(|_| 0),
        StoreKind::Memory => "the memory store needs no schema: it keeps nothing",
        StoreKind::Sqlite => {
            "the sqlite store needs no schema by hand: it creates its file and its tables \
             when it is first used"
        }
        StoreKind::Redis => "Redis needs no schema: keys come and go with the locks",
    });
    Ok(0)
}
