package enroll

import (
	"bytes"
	"strings"
	"testing"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

func TestTokenSurvivesItsText(t *testing.T) {
	t.Parallel()
	hash := bytes.Repeat([]byte{0xa5}, pki.RootHashLen)
	token, err := NewToken(hash)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseToken(" " + token.String() + "\n")
	if err != nil || got.ID != token.ID || !bytes.Equal(got.Secret, token.Secret) || !bytes.Equal(got.RootHash, hash) {
		t.Errorf("got %+v, %v", got, err)
	}
	other, err := NewToken(hash)
	if err != nil || other.ID == token.ID || bytes.Equal(other.SecretHash(), token.SecretHash()) {
		t.Errorf("two tokens are the same: %v", err)
	}
	if len(token.Secret) != 16 || strings.ToLower(token.String()) != token.String() {
		t.Errorf("%s", token)
	}
}

func TestDamagedTokensAreNotRepeated(t *testing.T) {
	t.Parallel()
	token, err := NewToken(make([]byte, pki.RootHashLen))
	if err != nil {
		t.Fatal(err)
	}
	text := token.String()
	secret := strings.Split(text, ".")[2]
	for _, bad := range []string{
		"", "x", text + ".x", strings.Replace(text, "trivet1", "trivet2", 1), text[:len(text)-2],
		strings.Replace(text, secret, secret[1:], 1), strings.Replace(text, token.ID, "0"+token.ID[1:], 1),
		strings.ToUpper(text),
	} {
		_, err := ParseToken(bad)
		if errs.Reason(err) != ReasonTokenMalformed || errs.From(err).Hint == "" {
			t.Errorf("%q: %v", bad, err)
			continue
		}
		if strings.Contains(err.Error(), secret[4:]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	token, err := NewToken(make([]byte, pki.RootHashLen))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token.String())
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseToken(text)
		if err != nil {
			return
		}
		if again, err := ParseToken(got.String()); err != nil || again.ID != got.ID {
			t.Errorf("%q became %q: %v", text, got, err)
		}
	})
}
