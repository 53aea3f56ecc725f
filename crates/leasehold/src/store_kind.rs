//! The kinds of store this build has, how their URLs begin, and what they need.

/// The kinds of store this build can connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// [`MemoryStore`](crate::backend::memory::MemoryStore).
    Memory,
    /// The embedded store.
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// Redis and Valkey.
    #[cfg(feature = "redis")]
    Redis,
    /// Independent Redis masters, a majority of which must agree.
    #[cfg(feature = "redis")]
    Redlock,
    /// etcd.
    #[cfg(feature = "etcd")]
    Etcd,
    /// ZooKeeper.
    #[cfg(feature = "zookeeper")]
    Zookeeper,
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres,
}

/// What a store needs before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetUp {
    /// Nothing, and why.
    Nothing(&'static str),
    /// These statements, where its clients may not run them by themselves.
    Sql(&'static str),
}

impl StoreKind {
    /// All of them.
    pub const ALL: &[StoreKind] = &[
        StoreKind::Memory,
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite,
        #[cfg(feature = "redis")]
        StoreKind::Redis,
        #[cfg(feature = "redis")]
        StoreKind::Redlock,
        #[cfg(feature = "etcd")]
        StoreKind::Etcd,
        #[cfg(feature = "zookeeper")]
        StoreKind::Zookeeper,
        #[cfg(feature = "postgres")]
        StoreKind::Postgres,
    ];

    /// How its URLs begin, without the colon: the usual way first.
    pub const fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &["memory"],
            #[cfg(feature = "sqlite")]
            Self::Sqlite => &["sqlite"],
            #[cfg(feature = "redis")]
            Self::Redis => &[
                "redis",
                "rediss",
                "redis+sentinel",
                "rediss+sentinel",
                "redis+cluster",
                "rediss+cluster",
            ],
            #[cfg(feature = "redis")]
            Self::Redlock => &["redlock", "redlocks"],
            #[cfg(feature = "etcd")]
            Self::Etcd => &["etcd", "etcds"],
            #[cfg(feature = "zookeeper")]
            Self::Zookeeper => &["zk", "zks", "zookeeper"],
            #[cfg(feature = "postgres")]
            Self::Postgres => &["postgres", "postgresql"],
        }
    }

    /// What has to be set up by hand before it is used, or why nothing has to.
    pub const fn set_up(self) -> SetUp {
        match self {
            Self::Memory => SetUp::Nothing("the memory store needs no schema: it keeps nothing"),
            #[cfg(feature = "sqlite")]
            Self::Sqlite => SetUp::Nothing(
                "the sqlite store needs no schema by hand: it creates its file and its tables \
                 when it is first used",
            ),
            #[cfg(feature = "redis")]
            Self::Redis => SetUp::Nothing("Redis needs no schema: keys come and go with the locks"),
            #[cfg(feature = "redis")]
            Self::Redlock => SetUp::Nothing(
                "a redlock needs no schema: its first client gives every node its marker",
            ),
            #[cfg(feature = "etcd")]
            Self::Etcd => {
                SetUp::Nothing("the etcd store needs no schema: its keys are those of etcdctl lock")
            }
            #[cfg(feature = "zookeeper")]
            Self::Zookeeper => SetUp::Nothing(
                "the zookeeper store needs no schema: it creates its nodes when they are \
                 first needed",
            ),
            #[cfg(feature = "postgres")]
            Self::Postgres => SetUp::Sql(crate::backend::postgres::SCHEMA),
        }
    }

    /// The kind behind this scheme.
    pub fn of_scheme(scheme: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.schemes().contains(&scheme))
    }
}
