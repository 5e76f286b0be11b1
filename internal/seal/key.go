package seal

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

// SecretLen is the length of a key's secret, in bytes.
const SecretLen = 32

const idLen = 8

// NewSecret draws the secret of a new key.
func NewSecret() ([]byte, error) {
	secret := make([]byte, SecretLen)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("draw a seal key: %w", err)
	}
	return secret, nil
}

// key is one seal key with what is derived from it.
type key struct {
	secret []byte
	rawID  [idLen]byte
	nonces []byte // key of the HMAC that makes nonces
	digest []byte // key of the HMAC behind Digest
	aead   cipher.AEAD
}

func newKey(secret []byte) (*key, error) {
	if len(secret) != SecretLen {
		return nil, fmt.Errorf("a seal key has %d bytes, not %d", SecretLen, len(secret))
	}
	k := &key{secret: secret}
	derive := func(what string, n int) ([]byte, error) {
		return hkdf.Key(sha256.New, secret, nil, "trivet seal "+what, n)
	}
	id, err := derive("id", idLen)
	if err != nil {
		return nil, fmt.Errorf("derive the id of a seal key: %w", err)
	}
	copy(k.rawID[:], id)
	if k.nonces, err = derive("nonce", sha256.Size); err != nil {
		return nil, fmt.Errorf("derive a nonce key: %w", err)
	}
	if k.digest, err = derive("digest", sha256.Size); err != nil {
		return nil, fmt.Errorf("derive a digest key: %w", err)
	}
	box, err := derive("box", chacha20poly1305.KeySize)
	if err != nil {
		return nil, fmt.Errorf("derive a cipher key: %w", err)
	}
	if k.aead, err = chacha20poly1305.NewX(box); err != nil {
		return nil, fmt.Errorf("make the cipher: %w", err)
	}
	return k, nil
}

// id follows from the secret, so that no two keys can be confused by name.
func (k *key) id() string { return hex.EncodeToString(k.rawID[:]) }

// nonce depends on everything that is sealed: equal nonces mean equal input.
func (k *key) nonce(context string, plaintext []byte) []byte {
	h := hmac.New(sha256.New, k.nonces)
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(context)))
	h.Write(n[:])
	h.Write([]byte(context))
	h.Write(plaintext)
	return h.Sum(nil)[:chacha20poly1305.NonceSizeX]
}
