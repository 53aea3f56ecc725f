//! TLS, as a layer of bytes: requests become records, and records what a server says. Nothing
//! here reads or writes a socket.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::ConnectionError;

/// The most room that is kept for encrypting.
const KEPT: usize = 64 * 1024;

/// The layer of one connection. What is sent before the end of the handshake is kept until then.
pub(super) struct Layer {
    session: ClientConnection,
    /// What is being encrypted.
    pub(super) plain: Vec<u8>,
}

impl Layer {
    pub(super) fn new(config: &Arc<ClientConfig>, host: &str) -> Result<Self, ConnectionError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| ConnectionError::NoName)?;
        let mut session = ClientConnection::new(config.clone(), name)?;
        // The core bounds what is under way.
        session.set_buffer_limit(None);
        Ok(Self { session, plain: Vec::new() })
    }

    /// Appends what is sent for [`Layer::plain`], and what TLS itself has to say.
    pub(super) fn encrypt(&mut self, records: &mut Vec<u8>) -> Result<(), ConnectionError> {
        let taken = self.session.writer().write_all(&self.plain);
        self.plain.clear();
        self.plain.shrink_to(KEPT);
        taken?;
        while self.session.wants_write() {
            self.session.write_tls(records)?;
        }
        Ok(())
    }

    /// Appends what these records say, as far as they have come; whether more may follow.
    pub(super) fn decrypt(
        &mut self,
        mut records: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<bool, ConnectionError> {
        let mut goes_on = true;
        while !records.is_empty() && goes_on {
            self.session.read_tls(&mut records)?;
            let state = self.session.process_new_packets()?;
            let start = plain.len();
            plain.resize(start + state.plaintext_bytes_to_read(), 0);
            self.session.reader().read_exact(&mut plain[start..])?;
            goes_on = !state.peer_has_closed();
        }
        Ok(goes_on)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::LazyLock;

    use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
    use rustls::crypto::{CryptoProvider, ring};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{CertificateError, RootCertStore, ServerConfig, ServerConnection};

    use super::*;

    static IDENTITY: LazyLock<CertifiedKey<KeyPair>> =
        LazyLock::new(|| generate_simple_self_signed(["localhost".to_owned()]).unwrap());

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(ring::default_provider())
    }

    pub(in super::super) fn server_config() -> ServerConfig {
        let key = PrivateKeyDer::try_from(IDENTITY.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        config.with_single_cert(vec![IDENTITY.cert.der().clone()], key).unwrap()
    }

    pub(in super::super) fn client_config() -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(IDENTITY.cert.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap();
        Arc::new(config.with_root_certificates(roots).with_no_client_auth())
    }

    /// What the server sends.
    fn sent(server: &mut ServerConnection) -> Vec<u8> {
        let mut records = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut records).unwrap();
        }
        records
    }

    /// What the server makes of what is sent to it.
    fn received(server: &mut ServerConnection, layer: &mut Layer) -> Vec<u8> {
        let (mut records, mut plain) = (Vec::new(), Vec::new());
        layer.encrypt(&mut records).unwrap();
        let mut rest = &records[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            let count = server.process_new_packets().unwrap().plaintext_bytes_to_read();
            let start = plain.len();
            plain.resize(start + count, 0);
            server.reader().read_exact(&mut plain[start..]).unwrap();
        }
        plain
    }

    /// A layer and its peer, behind the handshake.
    fn pair() -> (Layer, ServerConnection) {
        let mut layer = Layer::new(&client_config(), "localhost").unwrap();
        let mut server = ServerConnection::new(Arc::new(server_config())).unwrap();
        while layer.session.is_handshaking() || server.is_handshaking() {
            received(&mut server, &mut layer);
            assert!(layer.decrypt(&sent(&mut server), &mut Vec::new()).unwrap());
        }
        (layer, server)
    }

    #[test]
    fn what_is_sent_before_the_end_of_the_handshake_waits_for_it() {
        let mut layer = Layer::new(&client_config(), "localhost").unwrap();
        let mut server = ServerConnection::new(Arc::new(server_config())).unwrap();
        layer.plain.extend(b"early");
        let mut seen = Vec::new();
        while seen.is_empty() {
            seen.extend(received(&mut server, &mut layer));
            layer.decrypt(&sent(&mut server), &mut Vec::new()).unwrap();
        }
        assert_eq!(seen, b"early");
    }

    #[test]
    fn records_may_come_in_any_pieces() {
        let text: Vec<u8> = (0..100_000).map(|number: u32| number.to_le_bytes()[0]).collect();
        for size in [1, 2, 7, 4096, 16_406, 1 << 20] {
            let (mut layer, mut server) = pair();
            server.set_buffer_limit(None);
            server.writer().write_all(&text).unwrap();
            let mut plain = Vec::new();
            for piece in sent(&mut server).chunks(size) {
                assert!(layer.decrypt(piece, &mut plain).unwrap());
            }
            assert!(plain == text, "in pieces of {size}");
        }
    }

    #[test]
    fn keys_may_change_on_the_way() {
        let (mut layer, mut server) = pair();
        for _ in 0..3 {
            server.refresh_traffic_keys().unwrap();
            server.writer().write_all(b"answer").unwrap();
            let mut plain = Vec::new();
            layer.decrypt(&sent(&mut server), &mut plain).unwrap();
            assert_eq!(plain, b"answer");
            layer.plain.extend(b"request");
            assert_eq!(received(&mut server, &mut layer), b"request");
        }
    }

    #[test]
    fn a_good_bye_is_the_end() {
        let (mut layer, mut server) = pair();
        server.writer().write_all(b"last").unwrap();
        server.send_close_notify();
        let mut plain = Vec::new();
        assert!(!layer.decrypt(&sent(&mut server), &mut plain).unwrap());
        assert_eq!(plain, b"last");
    }

    /// The reason is kept, and the peer is told.
    #[test]
    fn a_server_that_cannot_be_verified_is_told_so() {
        let stranger = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(stranger.cert.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        for (config, name) in [(config, "localhost"), (client_config(), "127.0.0.1")] {
            let mut layer = Layer::new(&config, name).unwrap();
            let mut server = ServerConnection::new(Arc::new(server_config())).unwrap();
            received(&mut server, &mut layer);
            let error = layer.decrypt(&sent(&mut server), &mut Vec::new()).unwrap_err();
            let ConnectionError::Tls(rustls::Error::InvalidCertificate(why)) = error else {
                panic!("{error}");
            };
            let is_name = matches!(why, CertificateError::NotValidForNameContext { .. });
            assert_eq!(is_name, name == "127.0.0.1", "{why:?}");
            let mut alert = Vec::new();
            layer.encrypt(&mut alert).unwrap();
            server.read_tls(&mut &alert[..]).unwrap();
            let told = server.process_new_packets().unwrap_err();
            assert!(matches!(told, rustls::Error::AlertReceived(_)), "{told}");
        }
    }
}
