//! `leasehold schema`: what has to be set up by hand before a store can be used.

use leasehold::{SetUp, StoreKind};

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
    match kind.set_up() {
        SetUp::Sql(statements) => {
            screen::print(statements)?;
        }
        // Not to stdout, which may be another program's input.
        SetUp::Nothing(why) => tell(why),
    }
    Ok(0)
}
