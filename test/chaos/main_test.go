package chaos_test

import (
	"os"
	"testing"

	"trivet/test/chaos/chaostest"
)

func TestMain(m *testing.M) { os.Exit(chaostest.Main(m)) }
