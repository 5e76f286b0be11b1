// Package config reads the YAML files of trivet: those of a server, of a node
// and of the command line's contexts.
//
// It owns the reading, not the meaning: the struct that a file fills, its
// defaults and its validation belong to the package that uses it.
//
//   - Keys are lowerCamel, exactly as the json tags of the struct say; a key
//     in other letter case is an unknown key, and an unknown key is an error
//     that names the file, the path of the key and the nearest known key.
//   - Durations are Go strings ("500ms", "2h"), see Duration.
//   - All problems of a file are reported together.
//   - A value comes from the first of: flag, environment, file, default. The
//     default is what SetDefaults leaves in the struct, the file is laid over
//     it by Load, the environment by Overlay; flags are the caller's.
//
// Everything here is a pure function of its arguments and of the files that it
// is told to read; nothing is cached and nothing is global.
//
//	type serverFile struct {
//		Listen string          `json:"listen"`
//		Grace  config.Duration `json:"grace"`
//	}
//
//	func (f *serverFile) SetDefaults() { f.Listen = ":7400" }
//
//	f, err := config.Load[serverFile]("server.yaml")
//	if err == nil {
//		err = config.Overlay(f, "TRIVET_SERVER_", os.LookupEnv)
//	}
package config
