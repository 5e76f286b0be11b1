package agent

import "trivet/node/workload"

// containerVariable tells a process on a workstation whose environment it has.
const containerVariable = "TELEPRESENCE_CONTAINER"

// appEnvironment returns the environment of a container as the owner of an
// intercept gets it: without what only means something on this machine, and
// would break the process that is started with it.
func appEnvironment(c workload.Container) (map[string]string, error) {
	env, err := c.Environment()
	delete(env, "HOME")
	delete(env, "PATH")
	env[containerVariable] = c.Name
	return env, err
}
