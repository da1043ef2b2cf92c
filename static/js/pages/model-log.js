// The log of one model: shows new lines as they arrive.

import { followLog } from "../live/log.js";

followLog();
