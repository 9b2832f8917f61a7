// What the exported function calls. By plugins/templates/generate.
package export_outboxd_plugin_handler

import (
	"outboxd/gen/outboxd_plugin_messages"
	witTypes "outboxd/wit/types"
)

// Handle is set by the package outboxd.
var Handle func(outboxd_plugin_messages.Message) witTypes.Result[witTypes.Unit, outboxd_plugin_messages.Failure]
