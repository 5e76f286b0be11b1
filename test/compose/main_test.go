package compose

import (
	"os"
	"testing"

	"trivet/test/systest"
)

func TestMain(m *testing.M) { os.Exit(systest.Main(m)) }
