package system

import (
	"os"
	"testing"
	"time"

	"trivet/test/systest"
)

// settle is how long the cluster may take to come to rest after something was
// broken, far above what it takes on an idle machine.
const settle = 30 * time.Second

func TestMain(m *testing.M) { os.Exit(systest.Main(m)) }
