//! What a user is told when there is no etcd.

use std::error::Error as _;
use std::net::TcpListener;

use leasehold::ErrorKind;

/// Every line that an error and its causes say is a sentence: nothing of the driver's insides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_cluster_is_told_in_a_sentence() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    for host in [nobody.to_string(), "no-such-host.invalid".to_owned()] {
        let error = leasehold::connect(format!("etcd://{host}/locks")).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
        let mut said = vec![error.to_string()];
        let mut cause = error.source();
        while let Some(next) = cause {
            said.push(next.to_string());
            cause = next.source();
        }
        assert!(said[0].contains("no connection: ") && said[0].contains("check the address"));
        for line in said {
            let insides = ["tonic", "Error(", "Os {", "source:", "grpc"];
            assert!(!insides.iter().any(|inside| line.contains(inside)), "{line}");
        }
    }
}
