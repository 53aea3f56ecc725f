//! What a recorder sees of rejections. One test, since the recorder is the whole process's.

use leasehold::Token;
use leasehold::fence::{Fenced, FencedFile, REJECTIONS};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn rejections_are_counted_by_the_kind_of_resource() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let (old, new) = (Token::new(1), Token::new(2));
    let value = Fenced::new("value", ());
    let folder = tempfile::tempdir().unwrap();
    let file = FencedFile::new(folder.path().join("file"));
    value.advance(new).unwrap();
    file.advance(new).unwrap();
    for _ in 0..3 {
        value.advance(old).unwrap_err();
    }
    file.write(old, b"late").unwrap_err();

    let mut seen = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let (key, DebugValue::Counter(count)) = (key.key(), value) else { continue };
        let labels = key.labels().map(|label| format!("{}={}", label.key(), label.value()));
        seen.push((key.name().to_owned(), labels.collect::<Vec<_>>().join(","), count));
    }
    seen.sort();
    let expected = [("resource=file", 1), ("resource=process", 3)];
    let expected =
        expected.map(|(labels, count)| (REJECTIONS.to_owned(), labels.to_owned(), count));
    assert_eq!(seen, expected);
}
