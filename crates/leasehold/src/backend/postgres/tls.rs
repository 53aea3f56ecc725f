//! TLS by rustls, verified as far as `sslmode` says: `require` encrypts, `verify-ca` checks
//! who signed the certificate, `verify-full` also whose it is.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::backend::kit::tls;
use crate::error::{Error, Result};

/// How much of a server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verification {
    /// Nothing: the connection is encrypted, whoever is at its other end.
    None,
    /// That a known authority signed it.
    Chain,
    /// That it is this host's, too.
    Full,
}

pub(super) fn connector(
    verification: Verification,
    roots: Option<&Path>,
) -> Result<MakeRustlsConnect> {
    let provider = tls::provider();
    // As libpq does: with a root certificate, `require` verifies the chain.
    let chain = if verification == Verification::None && roots.is_none() {
        None
    } else {
        let roots = Arc::new(tls::roots(roots, "sslrootcert")?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        Some(verifier.build().map_err(unusable)?)
    };
    let verifier: Arc<dyn ServerCertVerifier> = match (verification, chain) {
        (Verification::Full, Some(whole)) => whole,
        (_, chain) => Arc::new(Lenient { provider: provider.clone(), chain }),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let message = format!("TLS cannot be set up: {error}; look at sslrootcert");
    Error::invalid(message).caused_by(error)
}

/// Checks less than the whole: only the chain, or nothing.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        let verified =
            chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is checked last: all else was right.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
