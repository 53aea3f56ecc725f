//! One of each kind of resource, and how a process writes to all of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Token;
use leasehold::fence::objects::{FencedObject, no_retries};
use leasehold::fence::sqlite::FencedSqlite;
use leasehold::fence::{FenceError, FencedFile, postgres, redis as fenced_redis};
use object_store::aws::AmazonS3Builder;
use serde::{Deserialize, Serialize};

use crate::{client, value};

/// Where they are, so that another process finds them too.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Resources {
    pub(crate) folder: PathBuf,
    pub(crate) value: SocketAddr,
    pub(crate) postgres: String,
    pub(crate) redis: String,
    pub(crate) objects: String,
    pub(crate) gate: SocketAddr,
}

/// What each said: `None` for done, else the token it had seen.
pub(crate) type Answers = BTreeMap<String, Option<u64>>;

const TABLE: &str = "create table if not exists note (text text); ";
const UPDATE: &str = "update note set text = ";

impl Resources {
    pub(crate) fn locks(&self) -> String {
        format!("sqlite:{}", self.folder.join("locks.db").display())
    }

    /// Creates and guards the tables.
    pub(crate) async fn prepare(&self) {
        let sql = format!("{TABLE} insert into note values ('')");
        let client = self.client().await;
        client.batch_execute(&sql).await.unwrap();
        postgres::install(&client).await.unwrap();
        postgres::guard_table(&client, "note", Some("note")).await.unwrap();
        let fenced = self.sqlite();
        fenced.connection().execute_batch(&sql).unwrap();
        fenced.guard_table("note", "note").unwrap();
    }

    /// Writes to all of them without asking whether the lease still lives.
    pub(crate) async fn write_all(&self, token: Token, text: &str) -> Answers {
        std::fs::write(self.folder.join("control"), text).unwrap();
        let mut answers = Answers::new();
        let mut note = |resource: &str, answer: Result<(), FenceError>| {
            let seen = answer.err().map(|error| {
                let stale = error.stale().unwrap_or_else(|| panic!("{resource}: {error}"));
                assert_eq!(stale.given, token, "{resource}");
                stale.seen.get()
            });
            answers.insert(resource.to_owned(), seen);
        };
        note("value", value::write(self.value, token, text).map_err(Into::into));
        note("file", self.file().write(token, text.as_bytes()));
        note("sqlite", self.write_sqlite(token, text));
        note("postgres", self.write_postgres(token, text).await);
        let connection = redis::Client::open(self.redis.as_str()).unwrap();
        let mut connection = connection.get_multiplexed_async_connection().await.unwrap();
        note(
            "redis",
            fenced_redis::set(&mut connection, "{note}:fence", token, "{note}", text).await,
        );
        note("object", self.object().put(token, text.to_owned()).await);
        let header = format!("Fencing-Token: note;{token}");
        let answer = client::send(self.gate, "PUT /note", &[&header], text);
        let seen = match answer.status {
            200 => None,
            412 => Some(answer.problem()["seen"].as_u64().unwrap()),
            _ => panic!("{answer:?}"),
        };
        answers.insert("http".to_owned(), seen);
        answers
    }

    /// What is in each of them, but the value and the service, which are this test's own.
    pub(crate) async fn read_all(&self) -> BTreeMap<&'static str, String> {
        let sql = "select text from note";
        let mut texts = BTreeMap::new();
        let read = |name| std::fs::read_to_string(self.folder.join(name)).unwrap();
        texts.insert("control", read("control"));
        texts.insert("file", read("file"));
        let row = self.sqlite().connection().query_row(sql, (), |row| row.get(0));
        texts.insert("sqlite", row.unwrap());
        texts.insert("postgres", self.client().await.query_one(sql, &[]).await.unwrap().get(0));
        let connection = redis::Client::open(self.redis.as_str()).unwrap();
        let mut connection = connection.get_multiplexed_async_connection().await.unwrap();
        let text = redis::cmd("GET").arg("{note}").query_async(&mut connection).await.unwrap();
        texts.insert("redis", text);
        let object = self.object().get().await.unwrap().unwrap();
        texts.insert("object", String::from_utf8(object.to_vec()).unwrap());
        texts
    }

    fn write_sqlite(&self, token: Token, text: &str) -> Result<(), FenceError> {
        self.sqlite().transaction(token, |transaction| {
            transaction.execute(&format!("{UPDATE} ?1"), [text])?;
            Ok(())
        })
    }

    async fn write_postgres(&self, token: Token, text: &str) -> Result<(), FenceError> {
        let mut client = self.client().await;
        let transaction = client.transaction().await?;
        postgres::present(&transaction, "note", token).await?;
        transaction.execute(&format!("{UPDATE} $1"), &[&text]).await?;
        Ok(transaction.commit().await?)
    }

    async fn client(&self) -> tokio_postgres::Client {
        let connected = tokio_postgres::connect(&self.postgres, tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        drop(tokio::spawn(connection));
        client
    }

    fn sqlite(&self) -> FencedSqlite {
        let connection = rusqlite::Connection::open(self.folder.join("note.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(30)).unwrap();
        FencedSqlite::new(connection).unwrap()
    }

    fn file(&self) -> FencedFile {
        FencedFile::new(self.folder.join("file"))
    }

    fn object(&self) -> FencedObject {
        let store = AmazonS3Builder::new()
            .with_endpoint(&self.objects)
            .with_allow_http(true)
            .with_bucket_name("bucket")
            .with_region("nowhere")
            .with_access_key_id("id")
            .with_secret_access_key("secret")
            .with_retry(no_retries());
        FencedObject::new(Arc::new(store.build().unwrap()), "note")
    }
}
