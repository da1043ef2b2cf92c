// The log of one model, which follows.

import { followLog } from "../live/log.js";

followLog();
